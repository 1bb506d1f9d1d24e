"""Show a running job: a live view on a terminal, plain lines elsewhere. The same facts in both."""

from __future__ import annotations

import time
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ropeteam.cli.show.jobview import Eta, JobView, incident_line, recovery_seconds

_PLAIN_SECONDS = 5.0
"""Least age of a plain line before another one is printed for new steps alone."""
_COLOURS = {
    "Running": "green",
    "Complete": "green",
    "Failed": "red",
    "Invalid": "red",
    "Recovering": "yellow",
}


class Screen(Protocol):
    """Output of a command that follows a job. It is used in a `with`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def show(self, view: JobView) -> None:
        """Show the newest view, and each incident that is new in it."""
        ...

    def print_line(self, text: str) -> None:
        """Print a line of ours."""
        ...

    def print_output(self, text: str) -> None:
        """Print output of a script, with its colours."""
        ...


def screen_for(console: Console) -> Screen:
    """Live view on a terminal, plain lines elsewhere."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class LiveScreen:
    """View that is repainted in place; incidents and messages scroll above."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._eta, self._new_incidents = Eta(), NewIncidents()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, view: JobView) -> None:
        for line in self._new_incidents.take_lines(view):
            self.print_line(line)
        self._live.update(panel(view, self._eta.update(view, time.monotonic())), refresh=True)

    def print_line(self, text: str) -> None:
        self._live.console.print(Text(text))

    def print_output(self, text: str) -> None:
        self._live.console.print(Text.from_ansi(text), soft_wrap=True)


class PlainScreen:
    """View as lines: one for each change of state or reason, and one every few seconds while steps are
    made."""

    def __init__(self, console: Console) -> None:
        self._console, self._eta, self._new_incidents = console, Eta(), NewIncidents()
        self._printed_at, self._printed, self._printed_step = 0.0, ("", ""), 0
        """Time, state with reason, and step of the last line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, view: JobView) -> None:
        """Print new incidents; then a line if state or reason have changed, or if the last line is
        _PLAIN_SECONDS old and of another step. The reason of a running job changes with each step, and is no
        change here."""
        for line in self._new_incidents.take_lines(view):
            self.print_line(line)
        now = time.monotonic()
        eta = self._eta.update(view, now)
        summary = view.state, "" if view.state == "Running" else view.why
        is_old = view.step != self._printed_step and now - self._printed_at >= _PLAIN_SECONDS
        if summary != self._printed or is_old:
            self._printed_at, self._printed, self._printed_step = now, summary, view.step
            self.print_line(plain_line(view, eta))

    def print_line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def print_output(self, text: str) -> None:
        self._console.print(Text.from_ansi(text), soft_wrap=True)


class NewIncidents:
    """Incidents that were not printed yet: each is printed as it opens and as it is recovered."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, bool]] = set()
        """Id, and whether it was recovered when it was printed."""

    def take_lines(self, view: JobView) -> list[str]:
        """Lines to print now; they count as printed. An incident counts as recovered when its lost steps are
        known as well, so that its one line has them; a script that reports no steps has none."""
        lines = []
        for incident in view.incidents:
            counted = incident.steps_lost is not None or not view.step
            recovered = recovery_seconds(incident) is not None and counted
            if (incident.id, recovered) not in self._reported:
                self._reported |= {(incident.id, recovered), (incident.id, False)}
                what = incident_line(incident, view.finished)
                first_line = incident.message.split("\n")[0]  # the rest is output of the script
                lines.append(f"incident {incident.id}: {what} - {first_line}")
        return lines


def plain_line(view: JobView, eta: str) -> str:
    """`gpt: Running - ready 3/3, step 5/10, loss 1.5`: name, state, facts, and the reason where the facts do
    not say all. eta: of Eta, or "" if it is not known."""
    facts = ", ".join(f"{name} {value}" for name, value in _facts(view, eta))
    why = "" if view.state in ("Running", "Complete") and facts else view.why
    return " - ".join(part for part in (f"{view.name}: {view.state}", facts, why) if part)


def _facts(view: JobView, eta: str) -> list[tuple[str, str]]:
    """Name and value of the facts that are known, in the order of the columns."""
    total = f"/{view.total_steps}" if view.total_steps else ""
    pairs = [
        ("ready", "" if view.finished else view.ready),
        ("step", f"{view.step}{total}" if view.step else ""),
        ("loss", view.loss),
        ("samples/s", view.samples_per_second),
        ("ETA", "" if view.finished else eta),
        ("world", str(view.world_size) if view.world_size else ""),
        ("checkpoint", "" if view.checkpoint_step is None else str(view.checkpoint_step)),
    ]
    return [(name, value) for name, value in pairs if value]


def panel(view: JobView, eta: str) -> Group:
    """Live view for rich: name, state and reason; the progress bar, if the number of steps is known; the
    facts."""
    head = Text.assemble(
        (view.name, "bold"), "  ", (view.state, f"bold {_COLOURS.get(view.state, 'cyan')}"), f"  {view.why}"
    )
    parts: list[Any] = [head]
    if view.total_steps:
        bar = Table.grid(expand=True)  # a ProgressBar alone writes no newline: the facts would overwrite it
        bar.add_row(ProgressBar(total=view.total_steps, completed=view.step))
        parts.append(bar)
    facts = _facts(view, eta)
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(name, style="dim") for name, _ in facts))
    table.add_row(*(Text(value) for _, value in facts))
    return Group(*parts, table)
