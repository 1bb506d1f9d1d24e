"""`ropeteam plan`: the plans of one or more jobs, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from ropeteam.cli import localstack
from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.manifest.read import Manifest
from ropeteam.cli.planning import cost as plan
from ropeteam_trainer.partition.answer import DryRunResult


def show(jobs: Sequence[Manifest], timeout_seconds: float) -> None:
    """Print one plan as lines, several as a table. Raises InvalidInput for a job that cannot work."""
    plans = [_rows(job, timeout_seconds) for job in jobs]
    if len(jobs) == 1:
        for line in plan.lines(plans[0]):
            click.echo(line)
    else:
        table = Table("", *(job.name for job in jobs), box=box.SIMPLE)
        for row in plan.side_by_side(plans):
            table.add_row(*row)
        Console(markup=False).print(table)
    click.echo(plan.TIME)


def _rows(job: Manifest, timeout_seconds: float) -> list[plan.Row]:
    try:
        return plan.rows_of(job.spec, _dry_run(job, timeout_seconds))
    except InvalidInput as error:
        raise InvalidInput(f"{job.name}: {error.message}") from None


def _dry_run(job: Manifest, timeout_seconds: float) -> DryRunResult | str:
    if not localstack.is_installed():
        return f"the script was not run: {localstack.MISSING}"
    from ropeteam.cli.planning import rehearse

    return rehearse.rehearse(job.spec, Path.cwd(), timeout_seconds)
