"""The agent's own words: one line each on stderr, beside the ranks' lines. Nobody waits for a reader: in the
agent's process sys.stderr is one of lines.py."""

from __future__ import annotations

import contextlib
import sys


def log(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it: no reason to end
        print(f"[ropeteam agent] {text}", file=sys.stderr, flush=True)
