#!/usr/bin/env python3
"""Writes conformance.json: small templates and what Jinja makes of them.

    tests/data/chat/make_conformance.py          (needs python3-jinja2)

Cases where Jinja raises an error have "error": true; its words are Jinja's own and not compared.
"""

import json
import os
import pathlib
import time

import conformance_expressions
import conformance_library
import conformance_statements
import reference

VARIABLES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüße, 世界! 🎉", "name": "Zoë"},
        {"role": "assistant", "content": "Hi <there>", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    ],
    "text": "Hello, World",
    "padded": " \t\n x y \u3000",
    "lines": "one\ntwo\r\nthree\n\nfour\u2028five",
    "mixed": "ßtraße ΑΣ ŉ ǆ ﬁ İi Σ",
    "empty": "",
    "nothing": None,
    "yes": True,
    "no": False,
    "numbers": [3, 1, 2],
    "floats": [0.1, 1.0, 1e16, 1e-7, 123456789.123, -0.0, 1e22, 5e-324, 100.0],
    "words": ["banana", "Apple", "cherry", "apple"],
    "nested": {"a": {"b": {"c": [10, 20, {"d": "deep"}]}}},
    "people": [
        {"name": "Ann", "age": 30, "city": "Rome", "tags": ["x"]},
        {"name": "bob", "age": 25, "city": "oslo"},
        {"name": "Cid", "age": 30, "city": "Oslo", "admin": True},
    ],
    "mapping": {"b": 2, "A": 1, "c": None, "items": "shadowed", "key with space": [1, 2]},
    "big": 12345678901234567890,
    "quotes": "it's \"quoted\" \\ back",
    "html": "<a href=\"x\">T & 'C'</a>",
    "control": "tab\tnl\nnul\u0000del\u007fnbsp\u00a0zw\u200b",
}

# Groups of templates, by what they are about, in the order of the file.
CASES = {**conformance_expressions.CASES, **conformance_statements.CASES, **conformance_library.CASES}


def main():
    cases = []
    os.environ["TZ"] = "UTC"
    time.tzset()
    now = 1722003723  # 2024-07-26 14:22:03
    for group, templates in CASES.items():
        for template in templates:
            case = {"group": group, "template": template}
            try:
                result = reference.render(template, VARIABLES, now)
                case["text"] = result["text"]
                if result["spans"]:
                    case["spans"] = result["spans"]
            except Exception as error:  # whatever a template can do wrong
                case["error"] = f"{type(error).__name__}: {error}"
            cases.append(case)
    path = pathlib.Path(__file__).with_name("conformance.json")
    with path.open("w", encoding="utf-8") as file:
        json.dump({"now": now, "variables": VARIABLES, "cases": cases}, file, ensure_ascii=False, indent=1)
        file.write("\n")
    print(len(cases), "cases,", sum("error" in case for case in cases), "of them errors")


if __name__ == "__main__":
    main()
