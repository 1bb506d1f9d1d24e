"""The agent's own log: one line each on stderr, beside the ranks' lines. A write never blocks on a slow
reader: in the agent's process sys.stderr is one of lines.py."""

from __future__ import annotations

import contextlib
import sys


def log(text: str) -> None:
    """Log one line, given without line end."""
    with contextlib.suppress(OSError):  # a closed stderr is no reason to end
        print(f"[ropeteam agent] {text}", file=sys.stderr, flush=True)
