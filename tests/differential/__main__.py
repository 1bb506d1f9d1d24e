"""python -m tests.differential [PATTERN]: play the scenarios whose name begins so, print what differs."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.differential.corpus import CORPUS
from tests.differential.known import KNOWN
from tests.differential.play import play


async def main(beginning: str, everything: bool) -> None:
    chosen = [each for each in CORPUS if each.name.startswith(beginning)]
    with tempfile.TemporaryDirectory(prefix="ropeteam-differential-") as folder:
        found = await play(chosen, Path(folder))
    for each in found:
        if everything or not any(known.covers(each) for known in KNOWN):
            print(each)
    print(
        f"{len(chosen)} scenarios, {sum(len(each.calls) for each in chosen)} calls, {len(found)} differences"
    )


if __name__ == "__main__":
    asyncio.run(main(next((a for a in sys.argv[1:] if a != "--all"), ""), "--all" in sys.argv))
