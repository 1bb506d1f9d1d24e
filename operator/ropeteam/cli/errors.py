"""Errors for a user: one sentence with the next step, never a traceback.

Exit codes: 2 for input that cannot work, 1 for a job that did not complete or a cluster that does not answer.
"""

from __future__ import annotations

from typing import Any

import click

from ropeteam_trainer.contract.errors import RopeteamError


class CommandError(RopeteamError, click.ClickException):
    """Error that ends a command: click prints its message and exits with `exit_code`."""

    def show(self, file: Any = None) -> None:  # noqa: ARG002 (a parameter of click's method)
        """Print the message to stderr, as all programs of ours do: click would write `Error:`."""
        click.echo(f"error: {self.message}", err=True)


class InvalidInput(CommandError):
    """Input of the user that cannot work."""

    exit_code = 2


class CommandFailed(CommandError):
    """Failure with valid input."""

    exit_code = 1
