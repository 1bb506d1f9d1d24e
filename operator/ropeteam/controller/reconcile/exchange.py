"""The exchange with a job's coordinator: it receives the desired state of the last decision, and answers with
its report. Limits: what is known of earlier exchanges is lost with this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ropeteam.controller.client.coordinator import Coordinators, CoordinatorUnreachable, RequestAuth, auth_for
from ropeteam.controller.reconcile.holders import Holders
from ropeteam.controller.reconcile.jobread import JobRead
from ropeteam.controller.reconcile.leases import Leases
from ropeteam.controller.settings import OperatorKeys
from ropeteam_trainer import contract
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.signing import Keys
from ropeteam_trainer.system.clocks import boot_seconds

_LOCKED_OUT = (
    " (the job was created with an operator key that is no longer accepted: give the operator that key as a "
    "previous key, in the entry `previous` of its Secret or with --previous-key-file)"
)


@dataclass
class Exchange:
    """Facts known from the exchanges with one job's coordinators."""

    leases: Leases
    holders: Holders = field(default_factory=Holders)
    _auth: tuple[Keys, int, RequestAuth] | None = None
    """The arguments of the last call of `auth`, and its result."""

    def auth(self, keys: Keys, contract: int) -> RequestAuth:
        """The RequestAuth for a coordinator with this token, job, term and contract version. The same object
        as long as they are the same: it has the challenge of the coordinator's last answer."""
        if self._auth is None or self._auth[:2] != (keys, contract):
            self._auth = keys, contract, auth_for(keys, contract)
        return self._auth[2]

    def record(self, desired: Desired, report: JobReport, now: float, *, has_previous: bool) -> None:
        """Record the report that answers `desired`. `now`: by the clock of this process. `has_previous`:
        whether a previous coordinator may still run. Then it may renew leases of older pods, so that the
        holders of slots count from zero."""
        self.leases.record(report, now)
        if has_previous:
            self.holders.forget()
        else:
            self.holders.record(desired, report, now)


@dataclass(frozen=True)
class CoordinatorLink:
    """The coordinators of all jobs, with the keys to sign with."""

    coordinators: Coordinators
    keys: OperatorKeys
    own_clock: Callable[[], float] = boot_seconds

    async def exchange(
        self, read: JobRead, known: Exchange, desired: Desired | None
    ) -> tuple[JobReport | None, str]:
        """Send `desired` to the job's coordinator, signed with the key of its pods. Returns its report and
        "", or None and why there is none. (None, ""): nothing was sent, for there is no `desired` yet, or no
        Service or address to send it to. A report is recorded in `known`. Raises Fenced: this operator may no
        longer write.
        """
        current = read.status.coordinator
        if desired is None or read.service is None or not current.address:
            return None, ""
        uid, key_id = read.metadata.uid, read.key_id
        keys = Keys(self.keys.key_or_current(key_id).token(uid), uid, desired.term)
        contracts = (pod.contract for pod in read.pods if pod.uid == current.pod_uid)
        auth = known.auth(keys, next(contracts, contract.VERSION))  # a pod that is not in the cache: ours
        try:
            report = await self.coordinators.send_desired(
                current.address, auth, known.leases.with_acknowledgement(desired)
            )
        except CoordinatorUnreachable as error:
            return None, f"{error}{'' if not key_id or self.keys.accepts(key_id) else _LOCKED_OUT}"
        known.record(desired, report, self.own_clock(), has_previous=bool(current.previous))
        return report, ""
