#!/usr/bin/env python3
"""Renders chat templates with Jinja, set up as transformers does it: the reference that Ithaca's interpreter is held to.

Standard input: a JSON array of {"template": text, "variables": object, "now": seconds since 1970 (optional)}.
Standard output: for each of them {"text": text, "spans": [[begin, end], ...]} (bytes of the text inside of
{% generation %} blocks) or {"error": message}.
"""

import contextlib
import datetime
import functools
import json
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: notes where in the text the block stands."""

    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        environment.extend(generation=self)
        self.blocks = []
        self.spans = []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def note(self, context, caller):
        text = caller()
        begin = len("".join(self.blocks))
        self.spans.append((begin, begin + len(text)))
        return text


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(now=None):
    result = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception

    def strftime_now(format):
        moment = datetime.datetime.now() if now is None else datetime.datetime.fromtimestamp(now)
        return moment.strftime(format)

    result.globals["strftime_now"] = strftime_now
    return result


@functools.lru_cache
def compiled(template, now):
    jinja = environment(now)
    return jinja.from_string(template), jinja.generation


def render(template, variables, now=None):
    jinja_template, generation = compiled(template, now)
    generation.blocks, generation.spans = [], []
    variables = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
    for block in jinja_template.generate(**variables):
        generation.blocks.append(block)
    text = "".join(generation.blocks)
    text.encode()
    spans = [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in generation.spans]
    return {"text": text, "spans": spans}


def main():
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    results = []
    for case in json.load(sys.stdin):
        try:
            results.append(render(case["template"], case["variables"], case.get("now")))
        except Exception as error:  # whatever a template can do wrong
            results.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(results, sys.stdout, ensure_ascii=False)


if __name__ == "__main__":
    main()
