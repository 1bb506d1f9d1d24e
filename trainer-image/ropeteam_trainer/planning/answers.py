"""Output of the answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.partition.answer import DryRunResult


def write(answer: DryRunResult) -> None:
    """Write the answer to the file that the environment names; without one, as a line to stdout."""
    text = codec.encode(answer).decode()
    if config.DRY_RUN_FILE in os.environ:
        Path(os.environ[config.DRY_RUN_FILE]).write_text(text)
    else:
        print(text)


def end(answer: DryRunResult) -> NoReturn:
    """Write the answer and end the script."""
    write(answer)
    raise SystemExit(0)
