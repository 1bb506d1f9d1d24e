"""Histories of losses of a job under sync Exact, and the moments in which they happen."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence, Set

from lab.ranks.recovery import RecoveringJob

STEP = "ropeteam_trainer.strategies.exact.step:ExactStep"
EXCHANGE = "ropeteam_trainer.strategies.exact.exchange"
FOLLOWING = "ropeteam_trainer.strategies.exact.following"
SUMS = "ropeteam_trainer.strategies.exact.sums:WorldSums"
WORLD = "ropeteam_trainer.rank.world:World"
IN_A_STEP = (
    f"{STEP}._run_leaf",
    f"{STEP}._send",
    f"{STEP}._add_numbers",
    f"{STEP}._use_sums",
    f"{SUMS}._add",
    f"{SUMS}._finish",
    f"{SUMS}._note_sent",
)
WHILE_JOINING = (
    f"{EXCHANGE}:Exchange.expect_state",
    f"{FOLLOWING}:Newcomer.received",
    f"{EXCHANGE}:as_bytes",
    f"{STEP}.join",
    f"{WORLD}._all_are_here",
    f"{WORLD}._form_group",
)

WHILE_FOLLOWING = (
    f"{EXCHANGE}:Exchange.report_progress",
    f"{STEP}._follow",
    f"{STEP}.end_following",
)


class History:
    """Random losses at random moments, of ranks that train and of ranks that join."""

    def __init__(self, job: RecoveringJob, seed: int, may_follow: bool = False) -> None:
        """may_follow: whether new ranks follow the others first."""
        self._job, self._random = job, random.Random(seed)
        self._in_a_step = (*IN_A_STEP, f"{EXCHANGE}:Exchange.lead") if may_follow else IN_A_STEP
        self._while_joining = (*WHILE_JOINING, *WHILE_FOLLOWING) if may_follow else WHILE_JOINING
        self._faulty: set[int] = set()
        """Replicas with a rank that will kill itself. One of the others survives each loss."""
        self.losses = 0

    def play(self, rounds: int, model: str = "everything") -> None:
        job, count = self._job, self._job.replicas
        some = {*self._random.sample(range(count), count // 2)}
        places = self._in_a_step + self._while_joining
        job.start(faults=self._faults(some, self._in_a_step, range(7, 19)), model=model)
        job.make_steps(1)  # begins with collectives of all
        for number in range(rounds):
            self._kill_some()
            job.make_steps(self._random.choice([0, 1, 2]))
            is_last = number == rounds - 1
            lost = self._replicas_of(job.lost)
            job.replace({} if is_last else self._faults(lost, places, range(1, 9)))
            self._join()

    def _faults(self, replicas: Set[int], places: Sequence[str], calls: Sequence[int]) -> dict[int, str]:
        """A fault for one rank of about half of these replicas."""
        chosen = {replica for replica in sorted(replicas) if self._random.random() < 0.6}
        self._faulty |= chosen
        return {
            self._one_of(replica): f"{self._random.choice(places)} {self._random.choice(calls)} SIGKILL"
            for replica in sorted(chosen)
        }

    def _kill_some(self) -> None:
        """Kill a rank of at least one replica, and of all that have a fault which has not come yet, at a
        random moment."""
        job = self._job
        sound = sorted(self._replicas_of(job.living()) - self._faulty)
        more = self._random.sample(sound, self._random.randint(not self._faulty, len(sound) - 1))
        job.permit(job.permitted + 6)
        time.sleep(self._random.uniform(0, 0.3))
        self._lose({self._one_of(replica) for replica in sorted({*self._faulty, *more})})

    def _join(self) -> None:
        """Step until all new ranks have joined. Those that have killed themselves are replaced, by ranks
        without a fault."""
        job = self._job
        while not all(map(job.can_continue, job.living())):
            job.step_until(lambda: job.dead() or all(map(job.can_continue, job.living())))
            if dead := job.dead():
                self._lose(dead)
                job.replace()

    def _lose(self, ranks: set[int]) -> None:
        for rank in ranks:
            self._job.group.kill_one(rank)
        self._job.lose(*ranks)
        self._faulty -= self._replicas_of(self._job.lost)
        self.losses += len(self._job.lost)

    def _one_of(self, replica: int) -> int:
        """A rank of this replica."""
        size = self._job.ranks // self._job.replicas
        return replica * size + (self._random.randrange(size) if size > 1 else 0)

    def _replicas_of(self, ranks: Iterable[int]) -> set[int]:
        return {rank * self._job.replicas // self._job.ranks for rank in ranks}
