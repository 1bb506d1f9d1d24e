"""Lines of ours on a job's stderr, marked as such."""

from __future__ import annotations

import sys


def notice(sentence: str) -> None:
    """Print one line for the user to stderr, after `ropeteam: `."""
    print(f"ropeteam: {sentence}", file=sys.stderr, flush=True)
