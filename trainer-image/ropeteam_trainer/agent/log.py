"""The agent's own words: one line each on stderr, beside the ranks' lines."""

from __future__ import annotations

import sys


def log(text: str) -> None:
    print(f"[ropeteam agent] {text}", file=sys.stderr, flush=True)
