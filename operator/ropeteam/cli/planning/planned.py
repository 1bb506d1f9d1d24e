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
from ropeteam.cli.planning import cost
from ropeteam_trainer.partition.answer import DryRunResult


def print_plans(jobs: Sequence[Manifest], timeout_seconds: float) -> None:
    """Print one plan as lines, several as a table. Raises InvalidInput, before any line, for a job that
    cannot work. timeout_seconds: for each script."""
    plans = [_plan_rows(job, timeout_seconds) for job in jobs]
    if len(jobs) == 1:
        for line in cost.row_lines(plans[0]):
            click.echo(line)
    else:
        table = Table("", *(job.name for job in jobs), box=box.SIMPLE)
        for row in cost.table_rows(plans):
            table.add_row(*row)
        Console(markup=False).print(table)
    click.echo(cost.TIME)


def _plan_rows(job: Manifest, timeout_seconds: float) -> list[cost.Row]:
    """Rows of one plan, after a dry run of its script. Raises InvalidInput with the job's name."""
    try:
        return cost.plan_rows(job.spec, _dry_run(job, timeout_seconds))
    except InvalidInput as error:
        raise InvalidInput(f"{job.name}: {error.message}") from None


def _dry_run(job: Manifest, timeout_seconds: float) -> DryRunResult | str:
    """Run the script up to job.wrap() in the current folder. A text is the reason why there is no result."""
    if not localstack.is_installed():
        return f"the script was not run: {localstack.MISSING}"
    from ropeteam.cli.planning import dryrun  # needs the package of the local cluster

    return dryrun.dry_run(job.spec, Path.cwd(), timeout_seconds)
