"""The pages of docs/techniques: manifests from examples/techniques, plans, and figures of benchmarks/results.

python -m tools.techniques            write them into the pages
python -m tools.techniques --check    say which pages are old; exit status 1 if any

A page shows the manifest of its name, and may have one plan of it. Each takes a few seconds: the manifest's
script is run up to job.wrap(). Limit: what a plan counts may change with the version of torch. A comment in
front of the figures, which no reader sees, names their rows: <!-- rows: techniques.gpipe.*; pipelines.* -->
"""

from __future__ import annotations

import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from ropeteam.api.job import TrainingJobSpec
from ropeteam.cli.planning.cost import plan_lines
from ropeteam.cli.planning.dryrun import dry_run

_ROOT = Path(__file__).resolve().parent.parent
FOLDER = _ROOT / "docs" / "techniques"
EXAMPLES = _ROOT / "examples" / "techniques"
RESULTS = _ROOT / "benchmarks" / "results"
_MANIFEST = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MODELINE = "# yaml-language-server:"
_PLAN = re.compile(r"(?<=^`ropeteam plan` says:\n\n```text\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)

_ROWS = re.compile(r"^<!-- rows: (.*) -->$", re.MULTILINE)
_FIGURES = re.compile(r"(?<=\n\n```text\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
_COLUMNS = {
    "steps_per_second": ("steps/s", "{:.1f}"),
    "speed": ("beside DDP", "{:.2f}"),
    "bytes_per_step": ("MB sent", "{:.2f}"),
    "peak_memory": ("MB at peak", "{:.1f}"),
    "held_memory": ("MB held", "{:.1f}"),
    "loss": ("loss", "{:.3f}"),
}
"""Of the comparison of all techniques."""
_TITLES = {
    r"memory\.zero(\d)\.w(\d)\.held": r"ZeRO-\1, \2 ranks: held, of the part that it should hold",
    r"memory\.recompute_(\w+)\.peak": r"memory at the peak, \1",
    r"pipelines\.(\w+)\.p(\d)\.(\w+)\.share": r"\1, \2 ranks, \3",
    r"wrap_overhead\.wrap\.ratio": "step time of wrap() / by hand",
    r"wrap_overhead\.again\.ratio": "step time by hand again / by hand",
    r"large_batch\.small_batch\.accuracy": "accuracy, batch 16",
    r"large_batch\.large_batch_scaled\.accuracy": "accuracy, batch 256, 16 times the rate",
    r"large_batch\.large_batch_unscaled\.accuracy": "accuracy, batch 256, the same rate",
}
"""Of rows whose names are no words of a reader."""


def pages() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def manifests(page: str) -> list[dict[str, Any]]:
    return [yaml.safe_load(block) for block in _MANIFEST.findall(page)]


def with_manifest(page: str, file: Path) -> str:
    """The page with its manifest as it is in the file, but for what only an editor reads."""
    lines = file.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith(_MODELINE))
    return _MANIFEST.sub(lambda _: f"```yaml\n{text}```", page)


def has_plan(page: str) -> bool:
    return _PLAN.search(page) is not None


def planned(page: str) -> str:
    """The page with its plan as it is now. Raises InvalidInput for a manifest that cannot work."""
    if not has_plan(page):
        return page
    [manifest] = manifests(page)
    spec = TrainingJobSpec.model_validate(manifest["spec"])
    lines = "".join(f"{line}\n" for line in plan_lines(spec, dry_run(spec, FOLDER, 300)))
    return _PLAN.sub(lambda _: lines, page)


def named_rows(page: str) -> list[str]:
    """Patterns of the rows that the page names for its figures."""
    found = _ROWS.search(page)
    return found[1].split("; ") if found else []


def measured(page: str) -> str:
    """The page with its figures as they are in the results."""
    if not (patterns := named_rows(page)):
        return page
    found = [row for pattern in patterns for row in rows() if fnmatchcase(row["id"], pattern)]
    tables = [table for table in (_compared(found), _plain(found)) if table]
    lines = "\n".join("".join(f"{line}\n" for line in table) for table in tables)
    before, names, after = _ROWS.split(page)
    return f"{before}<!-- rows: {names} -->" + _FIGURES.sub(lambda _: lines, after, count=1)


def rows() -> list[dict[str, Any]]:
    """Of all benchmarks."""
    files = sorted(RESULTS.glob("*.json"))
    return [row for path in files for row in json.loads(path.read_text())["rows"]]


def _compared(found: list[dict[str, Any]]) -> list[str]:
    """A line for each technique, with what all techniques are compared by."""
    table: dict[str, dict[str, float]] = {}
    for row in found:
        if row["id"].startswith("techniques."):
            _, name, what = row["id"].split(".")
            table.setdefault(name, {})[what] = row["value"] / (1e6 if what == "bytes_per_step" else 1)
    if not table:
        return []
    head = f"{'4 ranks':26}" + "".join(f"{title:>12}" for title, _ in _COLUMNS.values())
    return [
        head,
        *(
            f"{name:26}"
            + "".join(
                f"{form.format(of[what]) if what in of else '':>12}" for what, (_, form) in _COLUMNS.items()
            )
            for name, of in table.items()
        ),
    ]


def _plain(found: list[dict[str, Any]]) -> list[str]:
    """A line for each row of another benchmark."""
    lines = [
        (_title(row["id"]), f"{row['value']:g} {row['unit']}".rstrip(), f"{row['worst']:g}", str(row["n"]))
        for row in found
        if not row["id"].startswith("techniques.")
    ]
    if not lines:
        return []
    width = max(len(title) for title, *_ in lines)
    return [
        f"{title:{width}}  {value:>10}  {worst:>7}  {n:>4}"
        for title, value, worst, n in [("", "median", "worst", "of"), *lines]
    ]


def _title(row: str) -> str:
    for pattern, title in _TITLES.items():
        if found := re.fullmatch(pattern, row):
            return found.expand(title)
    return row


def main(arguments: list[str]) -> int:
    old = 0
    for path in pages():
        text = path.read_text()
        new = measured(planned(with_manifest(text, EXAMPLES / f"{path.stem}.yaml")))
        if new == text:
            continue
        old += 1
        print(f"{path.name} is old", flush=True)
        if arguments != ["--check"]:
            path.write_text(new)
    return 1 if old and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
