"""`python -m ropeteam.cli`: the same as `ropeteam`."""

from __future__ import annotations

from ropeteam.cli.main import cli

if __name__ == "__main__":
    cli(prog_name="ropeteam")
