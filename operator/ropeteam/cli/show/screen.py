"""Show a job as it goes: a live view on a terminal, plain lines elsewhere. The same facts in both."""

from __future__ import annotations

import time
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ropeteam.api.status import IncidentStatus
from ropeteam.cli.show.jobview import Eta, JobView, incident_line, recovery_seconds

_PLAIN_SECONDS = 5.0
_COLOURS = {
    "Running": "green",
    "Complete": "green",
    "Failed": "red",
    "Invalid": "red",
    "Recovering": "yellow",
}


class Screen(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def show(self, seen: JobView) -> None: ...

    def say(self, text: str) -> None: ...

    def output(self, text: str) -> None:
        """What a script has printed."""
        ...


def screen(console: Console) -> Screen:
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class LiveScreen:
    """Repaints in place; incidents and remarks scroll above."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._eta, self._news = Eta(), News()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, seen: JobView) -> None:
        for line in self._news.of(seen):
            self.say(line)
        self._live.update(panel(seen, self._eta.after(seen, time.monotonic())), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(Text(text))

    def output(self, text: str) -> None:
        self._live.console.print(Text.from_ansi(text), soft_wrap=True)


class PlainScreen:
    """A line when something happens, and one every few seconds while training goes on."""

    def __init__(self, console: Console) -> None:
        self._console, self._eta, self._news = console, Eta(), News()
        self._said_at, self._said = 0.0, ("", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, seen: JobView) -> None:
        for line in self._news.of(seen):
            self.say(line)
        now = time.monotonic()
        eta = self._eta.after(seen, now)
        news = seen.state, "" if seen.state == "Running" else seen.why
        if news != self._said or (seen.step and now - self._said_at >= _PLAIN_SECONDS):
            self._said_at, self._said = now, news
            self.say(plain_line(seen, eta))

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def output(self, text: str) -> None:
        self._console.print(Text.from_ansi(text), soft_wrap=True)


class News:
    """Incidents as they open and as they are over: each told once."""

    def __init__(self) -> None:
        self._told: set[tuple[str, bool]] = set()

    def of(self, seen: JobView) -> list[str]:
        lines = []
        for incident in seen.incidents:
            counted = incident.steps_lost is not None or not seen.step  # a script may report none
            recovered = recovery_seconds(incident) is not None and counted
            if (incident.id, recovered) not in self._told:
                self._told |= {(incident.id, recovered), (incident.id, False)}
                what = incident_line(incident, seen.finished)
                lines.append(f"incident {incident.id}: {what} - {_first_line(incident)}")
        return lines


def _first_line(incident: IncidentStatus) -> str:
    return incident.message.split("\n")[0]


def plain_line(seen: JobView, eta: str) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in facts_of(seen, eta))
    why = "" if seen.state in ("Running", "Complete") and facts else seen.why
    return " - ".join(part for part in (f"{seen.name}: {seen.state}", facts, why) if part)


def facts_of(seen: JobView, eta: str) -> list[tuple[str, str]]:
    """What there is to tell, in the order of the columns."""
    total = f"/{seen.total_steps}" if seen.total_steps else ""
    pairs = [
        ("ready", "" if seen.finished else seen.ready),
        ("step", f"{seen.step}{total}" if seen.step else ""),
        ("loss", seen.loss),
        ("samples/s", seen.samples_per_second),
        ("ETA", "" if seen.finished else eta),
        ("world", str(seen.world_size) if seen.world_size else ""),
        ("checkpoint", "" if seen.checkpoint_step is None else str(seen.checkpoint_step)),
    ]
    return [(name, value) for name, value in pairs if value]


def panel(seen: JobView, eta: str) -> Group:
    head = Text.assemble(
        (seen.name, "bold"), "  ", (seen.state, f"bold {_COLOURS.get(seen.state, 'cyan')}"), f"  {seen.why}"
    )
    parts: list[Any] = [head]
    if seen.total_steps:
        bar = Table.grid(expand=True)  # alone it ends no line, and takes the next one's place
        bar.add_row(ProgressBar(total=seen.total_steps, completed=seen.step))
        parts.append(bar)
    facts = facts_of(seen, eta)
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(name, style="dim") for name, _ in facts))
    table.add_row(*(Text(value) for _, value in facts))
    return Group(*parts, table)
