"""Output of a dry run's result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.partition.answer import DryRunResult


def write_result(result: DryRunResult) -> None:
    """Write the result to the file that DRY_RUN_FILE names; without that, as a line to stdout."""
    text = codec.encode(result).decode()
    if config.DRY_RUN_FILE in os.environ:
        Path(os.environ[config.DRY_RUN_FILE]).write_text(text)
    else:
        print(text)


def write_result_and_exit(result: DryRunResult) -> NoReturn:
    """Write the result and end the script: raises SystemExit(0)."""
    write_result(result)
    raise SystemExit(0)
