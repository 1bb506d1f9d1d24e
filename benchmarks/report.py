"""What every benchmark does with its figures: results/<name>.json, a list of rows, and a picture of the
samples.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One figure. `value` is the median of `n` samples; `beside` names what it is compared with."""

    id: str
    value: float
    unit: str
    n: int
    worst: float
    goal: str
    holds: bool | None
    beside: str


def row(name: str, samples: list[float], *, unit: str = "s", beside: str = "") -> Row:
    """Median and worst of samples, without a goal."""
    return Row(
        name,
        round(statistics.median(samples), 3),
        unit,
        len(samples),
        round(max(samples), 3),
        "",
        None,
        beside,
    )


def write(name: str, rows: list[Row], samples: dict[str, list[float]], unit: str) -> None:
    save(name, rows)
    draw(RESULTS / f"{name}.svg", samples, unit)


def save(name: str, rows: list[Row]) -> None:
    """The figures without a picture."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")


def tell(rows: list[Row]) -> int:
    """Print them. The exit status: 1 if a goal is missed."""
    for each in rows:
        figures = f"{each.value:8} {each.unit} n={each.n} worst={each.worst}"
        print(f"{each.id:40} {figures} {each.goal} {each.holds}")
    return 0 if all(each.holds is not False for each in rows) else 1


def draw(path: Path, samples: dict[str, list[float]], unit: str) -> None:
    """Every sample as a dot, the median as a bar: nothing is hidden."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.7 * len(samples) + 1.2))
    names = list(samples)
    for height, name in enumerate(names):
        axes.plot(samples[name], [height] * len(samples[name]), "o", alpha=0.4, markersize=5)
        axes.plot([statistics.median(samples[name])], [height], "|", markersize=22, color="black")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel(f"{unit}; a dot per trial, the median a bar (log scale)")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
