"""Findings of the campaign so far: one record per row, shape and product commit; a table of it for people."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.programs.outcome import Outcome, Seen
from tests.programs.rows import Row

ROOT = Path(__file__).parents[2]


def product() -> str:
    """The commit that last changed what is tested here."""
    command = ["git", "log", "-1", "--format=%h", "--", "operator", "trainer-image"]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout.strip()


class Results:
    """Written whole after each run, so that a campaign can be stopped at any time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.records = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        records: dict[str, dict[str, Any]] = json.loads(self._file.read_text()) if self._file.exists() else {}
        return records

    def has(self, row: Row, shape: str, commit: str) -> bool:
        return f"{row.name} {shape} {commit}" in self.records

    def add(self, row: Row, shape: str, commit: str, seen: Seen, outcome: Outcome) -> None:
        self.records = self._read()  # another campaign may have written meanwhile
        self.records[f"{row.name} {shape} {commit}"] = {
            "row": row.name, "shape": shape, "commit": commit, "project": row.project.repo,
            "launcher": row.launcher, "green": outcome.green, "verdict": outcome.name,
            "why": outcome.why[:500], "killed": bool(seen.killed), "end": seen.end,
            "reasons": sorted(seen.reasons),
        }  # fmt: skip
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.records, indent=1))
        part.replace(self._file)


def table(records: Iterable[dict[str, Any]], rows: Iterable[Row]) -> str:
    """The last record of each row and shape that still is in the table, and the counts."""
    known = {(row.name, shape) for row in rows for shape in row.shapes}
    last = {(one["row"], one["shape"]): one for one in records if (one["row"], one["shape"]) in known}
    lines = [
        f"{'green' if one['green'] else 'RED':6}{one['row']:34}{one['shape']:5}{one['launcher']:34}"
        f"{one['verdict']:18}{one['commit']:10}{'' if one['green'] else one['why'].splitlines()[0][:90]}"
        for _, one in sorted(last.items())
    ]
    verdicts = Counter((one["verdict"], one["green"]) for one in last.values())
    lines += [
        f"{number:4} {name}{'' if green else ' (RED)'}" for (name, green), number in sorted(verdicts.items())
    ]
    counts = [f"{len({one[key] for one in last.values()})} {key}s" for key in ("row", "project", "launcher")]
    return "\n".join([*lines, f"{', '.join(counts)}, {len(last)} of {len(known)} runs"])
