"""A step under Exact: this replica's micro-batches, and the sum of all replicas' gradients.

The gradient of a micro-batch is a function of the parameters, its samples, and a random seed that is made of
the job's seed, the step and the micro-batch. Nothing in it knows the number of replicas.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.strategy import StrategyError
from ropeteam_trainer.data.decisions.plan import Leaf, mix
from ropeteam_trainer.data.substitution import UntracedArgument
from ropeteam_trainer.partition.reductiontree import Node
from ropeteam_trainer.strategies.exact.admitting import Admitting, State
from ropeteam_trainer.strategies.exact.buffers import RunningStatistics
from ropeteam_trainer.strategies.exact.callbacks import Callbacks, MoreLeaves
from ropeteam_trainer.strategies.exact.decisions import Decisions
from ropeteam_trainer.strategies.exact.equality import WeightComparison
from ropeteam_trainer.strategies.exact.exchange import Exchange
from ropeteam_trainer.strategies.exact.gradients import Flat, GradientTree, add_along
from ropeteam_trainer.strategies.exact.members import (
    Arrival,
    CannotTakeOver,
    Members,
    Presence,
    Replication,
    leaves_of_begun_step,
    leaves_of_members,
    members_number,
)
from ropeteam_trainer.strategies.exact.positions import Position, sender_of_sums
from ropeteam_trainer.strategies.exact.sums import BucketShape, ReplicaLost
from ropeteam_trainer.strategies.model.microbatch import ModelArguments, check_loss, slices
from ropeteam_trainer.system.notice import notice

Connect = Callable[[Sequence[BucketShape]], Exchange]
"""Makes the exchange of such buckets with the other replicas."""


class ExactStep:
    """Steps of one model, in `leaves` micro-batches."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        leaves: int,
        seed: int,
        connect: Connect,
        computes: str,
        group: dist.ProcessGroup | None,
        replicas: Replication,
    ) -> None:
        """seed: of all ranks. computes: description of what the bits depend on. group: ranks that share each
        micro-batch; None: this one alone."""
        self._parts, self._computes = parts, computes
        self._parameters = parameters = self._trained()
        self._statistics = RunningStatistics({n: m for part in parts for n, m in part.named_modules()})
        self._tree = GradientTree(parameters, leaves, self._send)
        self._leaves, self._seed, self._group = leaves, seed, group
        self._shard = dist.get_rank(group) if group is not None else 0
        self._replica, self._replicas = replicas.replica, replicas.replicas
        self._membership, self.mates = replicas.membership, replicas.mates
        members = frozenset({self._replica} if replicas.begins_alone else range(self._replicas))
        self._dealt = leaves_of_members(members, self._replicas, leaves)[self._replica]
        """Leaves of this replica among the present members."""
        self._dealt_once: dict[int, tuple[int, ...]] = {}
        """Leaves of this replica in single exchanges, by their numbers."""
        self._held: list[int] = []
        """Leaves whose gradients are in the tree."""
        self._numbers: dict[Node, torch.Tensor] = {}
        """Sums of what is no gradient: the loss, which parameters are used, changes of statistics."""
        self._results: list[Flat] = []
        self._last_loss = torch.empty(0, device=parameters[0].device if parameters else "cpu")
        """Loss of one micro-batch. Of interest are its type and device, which those of a batch are too."""
        self._numbers_sum = torch.empty(0)
        self._numbers_shape = BucketShape(6 + self._tree.count + self._statistics.numel, torch.float64)
        shapes = [*(bucket.shape for bucket in self._tree.buckets), self._numbers_shape]
        self._exchange = connect(shapes)
        self._cuda_devices = _cuda_devices(parameters)
        self._done = 0
        """Number of the exchanges that are done. All replicas have the same, or one more."""
        self._step, self._calls = -1, 0  # of the last run(), and the number of runs in it
        self._is_broken = False
        """Whether a run has begun, but not ended: its gradients may be with other replicas."""
        self.decisions, self._comparison = Decisions(leaves, replicas.mates), WeightComparison(parts)
        self.presence, self.callbacks = Presence(self._replica, self._replicas, members), Callbacks()
        self.admitting = Admitting(self._exchange, self.decisions.admission, parts, replicas, self.callbacks)

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._seed, "computes": self._computes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the seed of a checkpoint. Says if the bits may differ from here on."""
        self._seed = state["seed"]
        if state["computes"] != self._computes and (not dist.is_initialized() or dist.get_rank() == 0):
            notice(
                f"the checkpoint was made with {state['computes']}, and this job has {self._computes}: from "
                "here on its losses and weights may differ in their last bits"
            )

    def run(
        self,
        compute: Callable[..., torch.Tensor],
        batch: ModelArguments,
        leaves: Sequence[Leaf],
        step: int,
        more: MoreLeaves,
    ) -> torch.Tensor:
        """Run forward and backward passes over this replica's `leaves` of a step, whose samples are those of
        `batch` in this order, and over those that `more` returns for a lost replica. Set each parameter's
        grad to the gradient of the mean loss over the samples of all replicas. Returns that mean loss. Raises
        TypeError as accumulate_gradients(), StrategyError if job.batches() has not dealt the batch,
        ReplicaLost, and CannotTakeOver."""
        self._check_call(leaves)
        self.callbacks.check_arguments(batch)
        self._is_broken = True
        self._step, self._calls = step, self._calls + 1 if step == self._step else 0
        self._comparison.begin_step(self._done)
        self._tree.begin_step()
        self._statistics.begin_step()
        self._numbers.clear()
        self._held.clear()
        self._results = [bucket.new_result() for bucket in self._tree.buckets]

        def compute_leaves(numbers: Sequence[int], are_last: bool) -> None:
            """Leaves of the batch, and others, in ascending order."""
            pieces = self._pieces(numbers, leaves, batch, more)
            with torch.random.fork_rng(devices=self._cuda_devices):
                for leaf, piece in pieces:
                    self._seed_generators(mix(self._seed, step, self._calls, leaf.number, self._shard))
                    self._run_leaf(compute, piece, leaf, are_last and leaf is pieces[-1][0])

        if self.follows:
            total = self._follow()
        else:
            compute_leaves(self._dealt_once.pop(self._done, self._dealt), True)
            total = self._finish(lambda numbers: compute_leaves(numbers, False))
        self._is_broken = False
        return total.to(self._last_loss)

    def _check_call(self, leaves: Sequence[Leaf]) -> None:
        """Raise StrategyError if run() cannot compute these."""
        if not leaves:
            raise StrategyError(
                "spec.strategy.sync: Exact deals the micro-batches of a step in job.batches(), and this "
                "script loads its data by other means; use job.batches(), or sync AllReduce"
            )
        if self._is_broken:
            raise StrategyError(
                "spec.strategy.sync: under Exact a call of model() cannot be tried again after an error, for "
                "a part of its gradients may be sent; let the error end the script: it is restarted"
            )
        if [id(p) for p in self._trained()] != [id(p) for p in self._parameters]:
            raise StrategyError(
                "spec.strategy.sync: Exact adds the gradients of the parameters that job.wrap() got, and "
                "others require gradients now; set requires_grad before job.wrap()"
            )

    def _pieces(
        self, numbers: Sequence[int], own: Sequence[Leaf], batch: ModelArguments, more: MoreLeaves
    ) -> list[tuple[Leaf, ModelArguments]]:
        """Micro-batches with their samples, in ascending order. own: those of `batch`."""
        found: Iterable[tuple[Leaf, ModelArguments]] = zip(
            own, slices(batch, [leaf.size for leaf in own]), strict=True
        )
        missing = [number for number in numbers if number not in {leaf.number for leaf in own}]
        if missing:
            try:
                others, theirs = more(missing, batch)
            except UntracedArgument as error:
                raise CannotTakeOver(
                    f"Connection closed by peer: a replica is lost, and this one cannot compute its "
                    f"micro-batches {', '.join(map(str, missing))}: {error}"
                ) from error
            found = itertools.chain(
                found, zip(others, slices(theirs, [leaf.size for leaf in others]), strict=True)
            )
        return sorted((pair for pair in found if pair[0].number in numbers), key=lambda pair: pair[0].number)

    def _trained(self) -> list[nn.Parameter]:
        return [p for part in self._parts for p in part.parameters() if p.requires_grad]

    def close(self) -> None:
        """End the connections to other replicas."""
        self._exchange.close()

    def _run_leaf(
        self, compute: Callable[..., torch.Tensor], batch: ModelArguments, leaf: Leaf, is_last: bool
    ) -> None:
        """Forward and backward pass over one micro-batch."""
        self._statistics.begin_leaf()
        self._tree.begin_leaf(leaf.number, is_last)
        loss = compute(*batch.inputs, **batch.named)
        check_loss(loss)
        (loss * leaf.weight).backward()
        self._last_loss = loss.detach()
        with torch.no_grad():
            self._tree.end_leaf()
            first = float(loss) * leaf.weight, 0, 0, 0, 0, 0
            numbers = torch.tensor([*first, *self._tree.used()], dtype=torch.float64, device="cpu")
            changes = [change * leaf.weight for change in self._statistics.changes()]
            add_along(self._numbers, leaf.number, torch.cat([numbers, *changes]), self._leaves)
        self._held.append(leaf.number)

    def _seed_generators(self, seed: int) -> None:
        """As torch.manual_seed(), which takes a millisecond where CUDA is not initialized: it formats the
        stack for each kind of device."""
        torch.default_generator.manual_seed(seed)
        for device in self._cuda_devices:
            torch.cuda.default_generators[device].manual_seed(seed)

    def _send(self, bucket: int) -> None:
        """Add a bucket's sums to the exchange. Called during the last backward pass."""
        nodes = {node: flat.values.cpu() for node, flat in self._tree.buckets[bucket].sums.items()}
        self._exchange.add(self._done, bucket, nodes, self._results[bucket].values)

    def _finish(self, compute_leaves: Callable[[Sequence[int]], None]) -> torch.Tensor:
        """Wait for the sums of all replicas, and set gradients and statistics. Returns the loss. If a replica
        is lost, continue with the others."""
        self._add_numbers()
        members: Members | None = None
        while True:
            reason = "Connection closed by peer: a replica is lost, and a rank of this one has no sums"
            votes: list[float] | None = None
            try:
                if members is None or not self._has_sums_of_another(members, compute_leaves):
                    self._wait_for_sums()
                votes = [self._numbers_sum[n].item() for n in (1, 2, 5)]
            except ReplicaLost as lost:
                if self._membership is None:
                    raise
                reason = str(lost)
            with self.callbacks.waiting():
                if self.decisions.is_complete(votes):
                    break
                assert self._membership is not None
                members = self.decisions.next_members(self._membership)
            if members is None:
                raise ReplicaLost(reason)
        if self._membership:
            sums = [*(result.values for result in self._results), self._numbers_sum]
            self._exchange.keep(sums)
            self.admitting.lead(sums, self._done)
        return self._use_sums(self._numbers_sum)

    def _follow(self) -> torch.Tensor:
        """Take the sums of the others. Returns the loss."""
        *sums, self._numbers_sum = self.admitting.followed_sums(self._done)
        self._take(sums)
        self._exchange.keep([*sums, self._numbers_sum])
        total = self._use_sums(self._numbers_sum)
        self._exchange.report_progress(self._done)
        return total

    def _take(self, sums: Sequence[torch.Tensor]) -> None:
        pairs = zip(self._tree.buckets, sums, strict=True)
        self._results = [bucket.result_of(values) for bucket, values in pairs]

    def _has_sums_of_another(self, members: Members, compute_leaves: Callable[[Sequence[int]], None]) -> bool:
        """Regroup. Whether another replica had the sums, and has sent them. If not, they are begun again,
        with the leaves that are dealt now. Sums have new memory in any case: a lost replica may still send
        into the old one."""
        mine = Position(self._done, (*self._held,), self._comparison.joined)
        with self.callbacks.waiting():
            connected = self._connected(members)
            positions = self.decisions.regrouped(
                lambda: self._exchange.regroup(members.number, connected, mine)
            )
        if sender_of_sums(positions) == self._replica and not self._exchange.has_sums:
            raise CannotTakeOver(
                "Connection closed by peer: a replica is lost, and this one, which has just joined with its "
                "state, has no sums that others need"
            )
        self.decisions.admission.note_members(members.number)
        members_left, most = frozenset(positions), max(position.done for position in positions.values())
        self.presence.note_lost(members_left, most)
        self._comparison.note_joined(max(position.joined for position in positions.values()))
        self._dealt = leaves_of_members(members_left, self._replicas, self._leaves)[self._replica]
        dealt = leaves_of_begun_step(positions, self._replicas, self._leaves)[self._replica]
        self._dealt_once = {}
        self._results = [bucket.new_result() for bucket in self._tree.buckets]
        if self._done < most:
            self._dealt_once[most] = dealt
            with self.callbacks.waiting():
                *sums, self._numbers_sum = self._exchange.sums_of_another(self._done)
            self._take(sums)
            return True
        compute_leaves([number for number in dealt if number not in self._held])
        for bucket in range(len(self._tree.buckets)):
            self._send(bucket)
        self._add_numbers()
        return False

    def _connected(self, members: Members) -> frozenset[int]:
        """The members without newcomers that have not come to this replica."""
        have_come = self.decisions.admission.knows(members.world_id)
        return members.replicas if have_come else members.replicas - members.newcomers

    def _add_numbers(self) -> None:
        """Add what is no gradient, with the votes of this replica, its digest where those are compared, and
        whether its clock demands a checkpoint."""
        self.decisions.admission.begin_exchange(lambda: self.admitting.have_caught_up(self._done))
        nodes, first = dict(self._numbers), min(self._numbers)
        votes = [
            len(self._held) * vote for vote in (*self.decisions.admission.votes, *self._comparison.votes)
        ]
        nodes[first] = nodes[first].clone()
        nodes[first][1:6] = torch.tensor(
            [*votes, self.callbacks.is_late()], dtype=torch.float64, device="cpu"
        )
        self._numbers_sum = self._numbers_shape.new()
        self._exchange.add(self._done, len(self._tree.buckets), nodes, self._numbers_sum)

    def _wait_for_sums(self) -> None:
        with self.callbacks.waiting():
            for bucket in range(len(self._tree.buckets) + 1):
                self._exchange.wait(self._done, bucket)

    @torch.no_grad()
    def _use_sums(self, numbers: torch.Tensor) -> torch.Tensor:
        """Set gradients and statistics. Returns the loss."""
        if not self.follows:
            self._comparison.check(numbers[3:5].tolist(), self._leaves, self._step)
        numbers = torch.cat([numbers[:1], numbers[6:]])
        used = iter(numbers[1 : 1 + self._tree.count].tolist())
        for bucket, result in zip(self._tree.buckets, self._results, strict=True):
            bucket.set_gradients(result, used)
        means = torch.cat([numbers[:1], numbers[1 + self._tree.count :]])
        if self._group is not None:  # the weights of parts are made for the mean over these ranks
            dist.all_reduce(means, group=self._group)
            means /= dist.get_world_size(self._group)
        self._statistics.end_step(means[1:])
        self._done += 1
        return means[0]

    # ---- lost and new replicas

    def admit(self, arrival: Arrival, state: State) -> bool:
        """As Admitting.admit(), with the new replicas of due."""
        if not self.admitting.admit(arrival, self._done, state):
            return False
        self._note_joined(arrival.world)
        return True

    @property
    def recovers(self) -> bool:
        """Whether this replica can continue without others."""
        return self._membership is not None

    def join(self, world: LiveWorld, done: int) -> None:
        """Continue in the world that has started this replica, after so many exchanges, which the others have
        done; as a member, or by following them first."""
        self._done = done
        if self.follows:
            self._exchange.report_progress(done)
        else:
            self._note_joined(world)

    def end_following(self, world: LiveWorld) -> bool:
        """Whether this replica, which follows others, is a member from here on. Returns once it is, or can
        make the next step."""
        is_member = self.admitting.is_member_after(self._done)
        if is_member:
            self._note_joined(world)
        return is_member

    @property
    def follows(self) -> bool:
        """Whether this replica is new, and makes steps of others before it is a member."""
        return self.admitting.follows

    def _note_joined(self, world: LiveWorld) -> None:
        self.decisions.admission.close(world.world_id)
        self._comparison.note_joined(self._done)
        self.presence.note_joined(members := self.admitting.members_of(world))
        dealt = leaves_of_members(members, self._replicas, self._leaves)
        self._dealt, self._dealt_once = dealt[self._replica], {}
        if self._membership:
            self._membership.have_joined(members_number(world.world_id, have_joined=True))

    @property
    def done(self) -> int:
        """Number of complete exchanges."""
        return self._done


def _cuda_devices(parameters: Iterable[nn.Parameter]) -> list[int]:
    """GPUs whose random generators a step uses."""
    devices = {p.device.index for p in parameters if p.device.type == "cuda"}
    if torch.cuda.is_initialized():  # where parameters are offloaded, dropout is still there
        devices.add(torch.cuda.current_device())
    return sorted(devices)
