"""Prometheus metrics of an agent on its pod's ranks, as text. Pure.

Labels: the job's namespace and name, the slot, and the rank: a pod's series end with the pod. Written
by hand: to import prometheus-client would cost every start of a pod 70 ms.
Step time is measured from step to step, beginning with the first sample of each world; it contains all that
the script does in between, evaluation and saving too. The agent samples five times a second: shorter steps
are counted several at a time.
Limits: a script without our library has no steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ropeteam_trainer.agent.machine.report import agent_report
from ropeteam_trainer.agent.machine.state import AgentState, ProgressSample, RankState
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import WorldId

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class RankCounters:
    """Counters of one rank over all worlds of this agent. They start at 0 again if a world is without the
    rank."""

    world_id: WorldId | None = None
    """The world that last started the rank."""
    starts: int = 0
    steps: int = 0
    seconds: float = 0.0
    """Time that these steps took."""
    last: ProgressSample | None = None
    """Sample of the newest step in `world_id`. None: that world has made none."""


Counts = Mapping[int, RankCounters]
"""Counters by rank."""


def updated_counts(counts: Counts, state: AgentState) -> Counts:
    """The counters with starts and steps since the last call added, for the ranks of the current world only.
    Call it after every event: a world that begins and ends between two calls is not counted."""
    if state.world is None:
        return counts
    world_id = state.world.started_in
    return {
        rank.rank: _updated_counters(counts.get(rank.rank, RankCounters()), rank, rank.started_in or world_id)
        for rank in state.world.ranks
    }


def _updated_counters(past: RankCounters, rank: RankState, world_id: WorldId) -> RankCounters:
    """The counters of one rank. Its first step in a world only begins the measurement of step time."""
    if rank.started_at is None:
        return past
    if past.world_id != world_id:
        past = replace(past, world_id=world_id, starts=past.starts + 1, last=None)
    if not rank.heartbeat.steps_here:
        return past
    newest, last = rank.progress_samples[-1], past.last
    if last is not None and newest.step > last.step:
        steps, seconds = newest.step - last.step, newest.at - last.at
        past = replace(past, steps=past.steps + steps, seconds=past.seconds + seconds)
    return replace(past, last=newest)


Sample = tuple[str, Mapping[str, str], float]
"""Suffix of the family's name, labels beyond the common ones, value."""
Family = tuple[str, str, str, list[Sample]]
"""Name, kind, help, samples."""


def render(state: AgentState, counts: Counts, unix_minus_monotonic: float) -> str:
    """The answer to a scrape, in Prometheus' text format. `unix_minus_monotonic`: what to add to times of
    progress samples so that they are Unix times."""
    settings, slot = state.config, str(state.identity.slot)
    common = {"namespace": settings.namespace, "job_name": settings.job, "slot": slot}
    ranks = _rank_families(state, counts, unix_minus_monotonic)
    families = (*_agent_families(state), *ranks, *_server_families(state))
    return "".join(_family_text(*family, common) for family in families)


def _agent_families(state: AgentState) -> Iterator[Family]:
    facts = {
        "ropeteam_agent_incarnation": ("Incarnation of this pod in its slot.", state.identity.incarnation),
        "ropeteam_agent_connected": ("1 while a coordinator answers this agent, else 0.", state.linked),
        "ropeteam_agent_terminating": ("1 once the pod is terminating, else 0.", state.exit_by is not None),
    }
    for name, (text, value) in facts.items():
        yield name, "gauge", text, [("", {}, float(value))]


def _rank_families(state: AgentState, counts: Counts, unix_minus_monotonic: float) -> Iterator[Family]:
    reports = agent_report(state).ranks
    ranks = {str(each.rank): (each, counts.get(each.rank, RankCounters())) for each in reports}
    yield (
        *("ropeteam_rank_phase", "gauge", "1 for the phase that the rank is in, 0 for the others."),
        [
            ("", {"rank": rank, "phase": phase.value}, float(reported.phase is phase))
            for rank, (reported, _) in ranks.items()
            for phase in RankPhase
        ],
    )
    yield (
        *("ropeteam_rank_step", "gauge", "Last step that the rank reported."),
        [("", {"rank": rank}, float(reported.step)) for rank, (reported, _) in ranks.items()],
    )
    yield (
        *(
            "ropeteam_rank_last_step_timestamp_seconds",
            "gauge",
            "Unix time of the last step that the rank made in its current world.",
        ),
        [
            ("", {"rank": rank}, past.last.at + unix_minus_monotonic)
            for rank, (_, past) in ranks.items()
            if past.last
        ],
    )
    yield (
        *("ropeteam_rank_starts_total", "counter", "Starts of the rank by this agent, including the first."),
        [("", {"rank": rank}, float(past.starts)) for rank, (_, past) in ranks.items()],
    )
    yield (
        *(
            "ropeteam_rank_step_seconds",
            "summary",
            "Seconds from step to step, evaluation and saving included.",
        ),
        [
            (suffix, {"rank": rank}, float(value))
            for rank, (_, past) in ranks.items()
            for suffix, value in (("_sum", past.seconds), ("_count", past.steps))
        ],
    )


def _server_families(state: AgentState) -> Iterator[Family]:
    """Families of parameter servers; none in a pod whose ranks have reported no `served`."""
    reported = {
        str(rank.rank): rank.served for rank in (state.world.ranks if state.world else ()) if rank.served
    }
    if not reported:
        return
    yield (
        *("ropeteam_rank_gradient_staleness", "summary", "Steps of other workers between pull and push."),
        [
            (suffix, {"rank": rank}, float(value))
            for rank, served in reported.items()
            for suffix, value in (("_sum", served.staleness), ("_count", served.applied))
        ],
    )
    yield (
        *(
            "ropeteam_rank_gradients_dropped_total",
            "counter",
            "Gradients that came too late for their step, and were not applied (backupWorkers).",
        ),
        [
            ("", {"rank": rank}, float(served.dropped))
            for rank, served in reported.items()
            if served.dropped is not None
        ],
    )


def _family_text(
    name: str, kind: str, text: str, samples: Iterable[Sample], common: Mapping[str, str]
) -> str:
    """A family in Prometheus' text format. Label values are names and numbers that need no escape."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for suffix, labels, value in samples:
        pairs = ",".join(f'{key}="{label}"' for key, label in {**common, **labels}.items())
        lines.append(f"{name}{suffix}{{{pairs}}} {value!r}")
    return "\n".join(lines) + "\n"
