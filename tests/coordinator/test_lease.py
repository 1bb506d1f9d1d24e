"""The lease of recovery.selfFence: the coordinator is silent before its operator takes it to be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from lab.coordinator.link import TOKEN
from lab.coordinator.reports import SIGKILL, config
from tests.coordinator.timeline import Timeline

from ropeteam.api.status import CoordinatorStatus, JobStatus
from ropeteam.controller.reconcile.leases import Leases
from ropeteam.core.deadlines import POLLS_PER_LEASE
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.fence import CLOCK_SHARE, longest_lease
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.lease import is_valid
from ropeteam_trainer.coordinator.server import Coordinator

FENCE = st.integers(10, 3600)
CALL_SECONDS = 3.0


@dataclass
class Game:
    """Operators, one after the other, one coordinator and its restarts, and a network that may hold up any
    word for any time. The coordinator's clock is slow, the operators' is fast."""

    lease: int
    at: float = 0.0
    boot: int = 0
    requested_at: list[Desired] = field(default_factory=list)
    answered: list[tuple[int, JobReport]] = field(default_factory=list)
    operators: int = 0
    over: bool = False
    """The operator has taken the lease to have run out, and sends that coordinator no more requests."""

    def __post_init__(self) -> None:
        self.restart_coordinator()
        self.restart_operator()

    @property
    def here(self) -> float:
        return 500.0 + self.at * (1 - CLOCK_SHARE / 2.1)

    @property
    def there(self) -> float:
        return 90_000.0 + self.at * (1 + CLOCK_SHARE / 2.1)

    def restart_coordinator(self) -> None:
        self.state = membership.initial_state(config(lease=self.lease), self.boot, self.here)
        self.boot += 1

    def restart_operator(self) -> None:
        self.leases = Leases(self.there)
        self.operators += 1

    def request(self) -> None:
        if not self.over:
            self.requested_at.append(self.leases.with_acknowledgement(Desired(1, 1, 1, {})))

    def arrives(self, which: int) -> None:
        if self.requested_at:
            desired = self.requested_at.pop(which % len(self.requested_at))
            self.state = membership.step(self.state, membership.DesiredReceived(desired), self.here, 0)
            report = membership.job_report(self.state, self.here)
            self.answered.append((self.operators, report))

    def is_answered(self, which: int) -> None:
        if self.answered:
            operator, report = self.answered.pop(which % len(self.answered))
            if operator == self.operators:  # no other process has that socket
                self.leases.record(report, self.there)

    def exchange(self) -> None:
        self.request()
        self.arrives(-1)
        self.is_answered(-1)

    def look(self) -> None:
        status = JobStatus(coordinator=CoordinatorStatus(term=1, lease_seconds=self.lease))
        (seen,) = self.leases.silent_coordinators(status, self.there)
        self.over |= seen.seconds >= longest_lease(self.lease)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            ("exchange", "exchange", "ask", "arrives", "is heard", "coordinator", "operator", "wait", "wait")
        ),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(FENCE, MOVES)
def test_once_the_operator_takes_the_lease_to_be_over_no_late_message_renews_it(lease, moves):
    game = Game(lease)
    for move, number in moves:
        match move:
            case "wait":
                game.at += lease * number / 9
            case "exchange":
                game.exchange()
            case "ask":
                game.request()
            case "arrives":
                game.arrives(number)
            case "is heard":
                game.is_answered(number)
            case "coordinator":
                game.restart_coordinator()
            case _:
                game.restart_operator()
        game.look()
        assert not (game.over and membership.may_answer(game.state, game.here))


@given(FENCE, st.lists(st.booleans(), max_size=60))
def test_it_holds_while_one_of_two_questions_is_answered(lease, luck):
    game, missed = Game(lease), 0
    game.exchange()
    game.exchange()
    for answered in luck:
        game.at += lease / POLLS_PER_LEASE
        missed = 0 if answered or missed else missed + 1
        if missed:
            game.at += min(CALL_SECONDS, lease / POLLS_PER_LEASE)
        else:
            game.exchange()
        assert is_valid(game.state, game.here)


def answered(film: Timeline) -> None:
    """The operator says back what it has just received."""
    film.desires(acknowledged_boot=film.state.boot, acknowledged_sent=film.report.sent)


def renewed(**settings: int) -> Timeline:
    film = Timeline(lease=20, feature_level=0, **settings)
    film.desires()
    answered(film)
    return film


def test_before_its_first_lease_it_answers_nobody_and_reports_it():
    film = Timeline(lease=20)
    film.desires()
    for slot in (0, 1):
        film.reports(slot)
    assert (film.orders(0), film.report.lease_valid, film.phase) == (None, False, "Waiting")
    answered(film)
    assert (film.report.lease_valid, film.phase) == (True, "Forming")
    assert film.sent_orders(0).host_store


def test_without_its_lease_it_neither_speaks_nor_judges_and_goes_on_from_there_when_it_has_it_again():
    film = renewed().up()
    film.later(19)
    assert film.sent_orders(0).plan
    film.later(1)
    film.exits(1, SIGKILL)
    film.later(100)
    assert (film.orders(0), film.phase) == (None, "Running")
    assert film.report.why == (
        "sending no orders: no contact with an operator for 20 s (spec.recovery.selfFence); without answers "
        "agents end their ranks"
    )
    answered(film)
    assert (film.phase, film.sent_orders(0).plan) == ("Stopping", None)
    assert film.report.replacement_requests == (), "its agents could not have ended their ranks before"


def test_an_older_boots_acknowledgement_is_no_renewal():
    film = renewed().up()
    before = film.report
    film.reboots()
    film.desires(acknowledged_boot=before.boot, acknowledged_sent=before.sent)
    assert not film.report.lease_valid
    answered(film)
    assert film.report.lease_valid


def test_an_agent_without_orders_has_applied_none():
    film = renewed().up()
    film.exits(1, SIGKILL)
    film.later(20)
    film.reports(0, applied=True, stopped=True, ranks=())
    assert film.state.world
    assert not film.state.world.quiesced & 1


async def test_a_suspended_machine_s_lease_runs_out_meanwhile():
    asleep = 0.0
    it = Coordinator(config(lease=20), 0, TOKEN, Log(lambda _: None), asleep=lambda: asleep)
    first = it.apply_desired(Desired(1, 1, 1, {}))
    request = replace(Desired(1, 1, 1, {}), acknowledged_boot=0, acknowledged_sent=first.sent)
    assert it.apply_desired(request).lease_valid
    asleep = 20.0
    assert not it.job_report().lease_valid
    it.stop()
