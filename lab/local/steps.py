"""Read what ticking ranks wrote: which processes of which world made which steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.waiting import wait_until


def lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / f"rank-{rank}.jsonl"
    text = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in text if line.endswith("}")]


def worlds(folder: Path, rank: int = 0) -> list[str]:
    """The worlds this rank made steps in, in order."""
    return list(dict.fromkeys(line["world"] for line in lines(folder, rank)))


def wait_steps(folder: Path, ranks: int = 2, count: int = 5, world_number: int = 1) -> None:
    """Until every rank has made `count` steps in its `world_number`-th world."""

    def stepped() -> bool:
        for rank in range(ranks):
            seen = worlds(folder, rank)
            if len(seen) < world_number:
                return False
            here = [line for line in lines(folder, rank) if line["world"] == seen[world_number - 1]]
            if len(here) < count:
                return False
        return True

    wait_until(f"{count} steps of {ranks} ranks in world {world_number}", stepped)


def order(folder: Path, rank: int, command: str) -> None:
    """Send a command to a ticking rank. The file is renamed into place: a rank never reads half of it."""
    draft = folder / f".do-{rank}"
    draft.write_text(command)
    draft.rename(folder / f"do-{rank}")
