"""The comparison of all techniques as one picture: a line for each technique, a column for each cost."""

from __future__ import annotations

from benchmarks.report import RESULTS, Row

PANELS = {
    "steps_per_second": ("steps per second", "{:.1f}"),
    "bytes_per_step": ("MB sent by a rank per step", "{:.2f}"),
    "peak_memory": ("MB of memory at the peak, per rank", "{:.0f}"),
    "loss": ("loss at the end", "{:.3f}"),
}
PAPER, INK, BAR, FLOOR = "#fcfcfb", "#52514e", "#2a78d6", "#86b6ef"


def draw(rows: list[Row], floors: tuple[str, ...]) -> None:
    """results/techniques.svg. The techniques named in `floors` are what the others are compared with."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    found = {tuple(each.id.split(".")[1:]): each.value for each in rows}
    names = list(dict.fromkeys(name for name, _ in found))
    colors = [FLOOR if name in floors else BAR for name in names]
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
    figure.tight_layout()
    figure.savefig(RESULTS / "techniques.svg", metadata={"Date": None})
