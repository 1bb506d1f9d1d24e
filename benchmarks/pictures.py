"""Pictures of results, from results/*.json alone.

    python -m benchmarks.pictures [NAME ...]     of these, or of all, in dist/pictures
    python -m benchmarks.pictures --shown        those that pages show, in docs/pictures

Of most results every sample is a dot and the median a bar: nothing is hidden. `techniques` is a line for each
technique and a column for each cost. A picture names the SHA-256 of the result that it was drawn from, so a
test can say that it is out of date. Its text is text: the browser's font draws it.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks import results
from benchmarks.results import ROOT, Result, Row

DRAWN, SHOWN = ROOT / "dist" / "pictures", ROOT / "docs" / "pictures"
OF_PAGES = ("gang_restart", "half", "recovery", "techniques")
PANELS = {
    "steps_per_second": ("steps per second", "{:.1f}"),
    "bytes_per_step": ("MB sent by a rank per step", "{:.2f}"),
    "peak_memory": ("MB of memory at the peak, per rank", "{:.0f}"),
    "loss": ("loss at the end", "{:.3f}"),
}
PEERS = ("one_process", "ddp_by_hand")
"""Techniques that the others are compared with."""
PAPER, INK, BAR, PEER_BAR = "#fcfcfb", "#52514e", "#2a78d6", "#86b6ef"


def draw(name: str, folder: Path) -> Path | None:
    """None: there is nothing to see, because the samples were not kept."""
    result = results.load(name)
    if not result.samples:
        return None
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = _techniques(result.rows) if name == "techniques" else _dots(result)
        figure.tight_layout()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None, "Source": source(name)})
        pyplot.close(figure)
    return path


def source(name: str) -> str:
    return f"sha256:{hashlib.sha256(results.path_of(name).read_bytes()).hexdigest()}"


def _dots(result: Result) -> Figure:
    names = list(result.samples)
    inches = 0.7 if len(names) <= 10 else 0.35
    figure, axes = pyplot.subplots(figsize=(9, inches * len(names) + 1.2))
    for height, values in enumerate(result.samples.values()):
        axes.plot(values, [height] * len(values), "o", alpha=0.4, markersize=5)
        axes.plot([statistics.median(values)], [height], "|", markersize=22, color="black")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel(f"{result.unit}; a dot per trial, the median a bar (log scale)")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.invert_yaxis()
    return figure


def _techniques(rows: list[Row]) -> Figure:
    found = {tuple(each.id.split(".")[1:]): each.value for each in rows}
    names = list(dict.fromkeys(name for name, _ in found))
    colors = [PEER_BAR if name in PEERS else BAR for name in names]
    figure, columns = pyplot.subplots(1, len(PANELS), figsize=(13, 0.27 * len(names) + 1.2), sharey=True)
    figure.set_facecolor(PAPER)
    for axes, (what, (title, form)) in zip(columns, PANELS.items(), strict=True):
        values = [found.get((name, what), 0.0) / (1e6 if what == "bytes_per_step" else 1) for name in names]
        axes.set_facecolor(PAPER)
        axes.barh(names, values, height=0.7, color=colors)
        for height, value in enumerate(values):
            axes.annotate(
                form.format(value), (value, height), xytext=(3, 0), textcoords="offset points",
                va="center", fontsize=7, color=INK,
            )  # fmt: skip
        axes.set_title(title, fontsize=9, loc="left", color=INK)
        axes.set_xlim(0, max(values) * 1.2 or 1)
        axes.tick_params(labelsize=8, colors=INK, length=0)
        axes.set_xticks([])
        axes.margins(y=0.01)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    columns[0].set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    columns[0].invert_yaxis()
    return figure


def main(arguments: list[str]) -> int:
    chosen, folder = (OF_PAGES, SHOWN) if arguments == ["--shown"] else (arguments or results.names(), DRAWN)
    if unknown := sorted(set(chosen) - set(results.names())):
        print(f"no result {', '.join(unknown)}; there are {', '.join(results.names())}")
        return 2
    for name in chosen:
        path = draw(name, folder)
        print(path.relative_to(ROOT) if path else f"{name}: its samples were not kept")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
