#!/usr/bin/env python3
"""Draws a trace of `ithaca train --trace` as an SVG picture: what the streams of every rank did, coloured by phase.

    scripts/trace_picture.py trace.json picture.svg [--layer N] [--step N]

Above, the whole step; below it, the forward and the backward of one layer (the middle one, or --layer), over all
ranks. Where a row of a compute stream is white, the stream stood still; the percentage says how much of the time it
worked.
Needs Python 3 and nothing else.
"""
import argparse
import json
import sys
from xml.sax.saxutils import escape

WIDTH = 1200
LABEL = 150
ROW = 18
GAP = 6
COMPUTE, COMMUNICATION, COPY = 1, 2, 3
STREAMS = {COMPUTE: "compute", COMMUNICATION: "communication", COPY: "copies"}
COLOURS = {
    "upload": "#9e9e9e",
    "embedding": "#bcaaa4",
    "forward: norm + projections": "#90caf9",
    "forward: attention": "#1565c0",
    "forward: output + MLP": "#4fc3f7",
    "loss head": "#fdd835",
    "recompute: norm + projections": "#ce93d8",
    "recompute: attention": "#8e24aa",
    "recompute: output + MLP": "#ba68c8",
    "backward: MLP": "#81c784",
    "backward: attention": "#2e7d32",
    "backward: projections": "#aed581",
    "backward: embedding": "#dce775",
    "gradient reduction": "#ef6c00",
    "optimizer": "#c62828",
}
OTHER = "#616161"


class Trace:
    """Work of each (rank, stream) as sorted (begin, end, phase), in microseconds."""

    def __init__(self, events, step):
        slices = [event for event in events if event.get("ph") == "X"]
        steps = sorted({e["name"] for e in slices if e["cat"] == "step"}, key=lambda name: int(name.split()[1]))
        if not steps:
            sys.exit("the trace holds no step")
        wanted = f"step {step}" if step is not None else steps[-1]
        if wanted not in steps:
            sys.exit(f"the trace holds {', '.join(steps)}, not {wanted}")
        self.step = wanted
        hosts = [e for e in slices if e["cat"] == "step" and e["name"] == wanted]
        self.begin = min(e["ts"] for e in hosts)
        self.end = max(e["ts"] + e["dur"] for e in hosts)
        inside = [e for e in slices if self.begin <= e["ts"] < self.end]
        self.ranks = sorted({e["pid"] for e in inside})
        self.work = {}
        self.layers = {}
        for rank in self.ranks:
            for stream in STREAMS:
                own = sorted((e for e in inside if e["pid"] == rank and e["tid"] == stream),
                             key=lambda e: (e["ts"], -e["dur"]))
                phases = [e for e in own if e["cat"] == "phase"]
                # CPU ranks show their exchanges whole, GPUs the kernels and copies in them.
                operations = [e for e in own if e["cat"] == "operation"] or [e for e in own if e["cat"] == "exchange"]
                self.work[rank, stream] = self._with_phases(operations, phases)
                if stream == COMPUTE:
                    for e in own:
                        if e["cat"] == "part" and e["name"].startswith("layer "):
                            self.layers.setdefault((rank, int(e["name"].split()[1])), []).append(e)

    @staticmethod
    def _with_phases(operations, phases):
        """Operations with the name of the innermost phase around them; both are sorted by their beginnings."""
        result, around, following = [], [], 0
        for operation in operations:
            begin = operation["ts"]
            while following < len(phases) and phases[following]["ts"] <= begin:
                around.append(phases[following])
                following += 1
            around = [phase for phase in around if begin < phase["ts"] + phase["dur"]]
            result.append((begin, begin + operation["dur"], around[-1]["name"] if around else ""))
        return result


def merged(work, begin, end, smallest_gap):
    """The pieces within [begin, end), neighbours of one phase as one where less than `smallest_gap` lies between."""
    pieces = []
    for start, stop, phase in work:
        start, stop = max(start, begin), min(stop, end)
        if stop <= start:
            continue
        if pieces and pieces[-1][2] == phase and start - pieces[-1][1] < smallest_gap:
            pieces[-1][1] = max(stop, pieces[-1][1])
        else:
            pieces.append([start, stop, phase])
    return pieces


class Picture:
    def __init__(self):
        self.parts = []
        self.height = 10
        self.used = set()

    def text(self, x, y, words, size=12, anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
                          f'font-weight="{weight}">{escape(words)}</text>')

    def panel(self, trace, title, begin, end):
        end = max(end, begin + 0.001)  # a clock may not have moved
        scale = (WIDTH - LABEL - 20) / (end - begin)
        self.height += 18
        self.text(10, self.height, f"{title}: {(end - begin) / 1000:.2f} ms", 13, weight="bold")
        self.height += 8
        for rank in trace.ranks:
            for stream, name in STREAMS.items():
                pieces = merged(trace.work[rank, stream], begin, end, 0.5 / scale)
                if not pieces:
                    continue
                busy = sum(stop - start for start, stop, _ in pieces) / (end - begin)
                self.text(10, self.height + ROW - 5, f"rank {rank} {name}", 11)
                self.parts.append(f'<rect x="{LABEL}" y="{self.height}" width="{WIDTH - LABEL - 20}" height="{ROW}" '
                                  'fill="#ffffff" stroke="#d0d0d0" stroke-width="0.5"/>')
                for start, stop, phase in pieces:
                    self.used.add(phase)
                    x = LABEL + (start - begin) * scale
                    self.parts.append(f'<rect x="{x:.2f}" y="{self.height + 1}" '
                                      f'width="{max((stop - start) * scale, 0.2):.2f}" height="{ROW - 2}" '
                                      f'fill="{COLOURS.get(phase, OTHER)}"><title>{escape(phase or "other")}, '
                                      f'{(stop - start) / 1000:.3f} ms</title></rect>')
                self.text(WIDTH - 16, self.height + ROW - 5, f"{100 * busy:.0f}%", 10)
                self.height += ROW + 2
            self.height += GAP
        self.height += GAP

    def legend(self):
        x, self.height = 10, self.height + 6
        for phase in [name for name in COLOURS if name in self.used] + ([""] if "" in self.used else []):
            words = phase or "other"
            width = 26 + 6.4 * len(words)
            if x + width > WIDTH:
                x, self.height = 10, self.height + 20
            self.parts.append(f'<rect x="{x}" y="{self.height}" width="12" height="12" '
                              f'fill="{COLOURS.get(phase, OTHER)}"/>')
            self.text(x + 16, self.height + 10, words, 11)
            x += width
        self.height += 24

    def write(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 20} {self.height}" '
                       f'width="{WIDTH + 20}" height="{self.height}" font-family="sans-serif">\n'
                       f'<rect width="100%" height="100%" fill="#fafafa"/>\n')
            file.write("\n".join(self.parts))
            file.write("\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("picture")
    parser.add_argument("--layer", type=int, help="shown closely; the middle one by default")
    parser.add_argument("--step", type=int, help="of several in the trace; the last one by default")
    arguments = parser.parse_args()
    try:
        with open(arguments.trace, encoding="utf-8") as file:
            trace = Trace(json.load(file)["traceEvents"], arguments.step)
    except OSError as error:
        sys.exit(f"cannot read {arguments.trace}: {error.strerror}")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        sys.exit(f"{arguments.trace} is not a trace that ithaca train --trace has written")
    picture = Picture()
    picture.panel(trace, f"{trace.step}, all of it", trace.begin, trace.end)
    numbers = sorted({number for _, number in trace.layers})
    if numbers:
        layer = arguments.layer if arguments.layer is not None else numbers[len(numbers) // 2]
        if layer not in numbers:
            sys.exit(f"the trace holds layers {numbers[0]} to {numbers[-1]}, not {layer}")
        passes = [trace.layers[rank, layer] for rank in trace.ranks if (rank, layer) in trace.layers]
        for index, name in enumerate(("forward", "backward")):
            spans = [layers[index] for layers in passes if index < len(layers)]
            if spans:
                picture.panel(trace, f"layer {layer}, {name}", min(e["ts"] for e in spans),
                              max(e["ts"] + e["dur"] for e in spans))
    picture.legend()
    try:
        picture.write(arguments.picture)
    except OSError as error:
        sys.exit(f"cannot write {arguments.picture}: {error.strerror}")


if __name__ == "__main__":
    main()
