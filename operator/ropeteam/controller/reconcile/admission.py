"""Whether the API server would admit a job's worker pod: one dry run per generation of the job, before
anything is created. Limits: quotas are not part of it; a pod that exceeds one may fit later.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.rules import validate as rules
from ropeteam.controller.client.apiclient import (
    REFUSALS,
    ApiClient,
    ApiError,
    Object,
    OwnedObjectExists,
    QuotaExceeded,
)
from ropeteam.core.objects import nonroot, workerpod
from ropeteam.core.seen.observation import Observation, Refusal

_LONGEST_REFUSAL = 4096
"""Characters. The API server repeats the refused object, up to a whole spec, and the text is cached."""


@dataclass
class Admission:
    """The API server's answer about one job's worker pod."""

    tried_generation: int = -1
    """Generation of the job that was tried last; -1: none."""
    refusal: Refusal | None = None
    """None: the pod was admitted, or not tried."""


@dataclass(frozen=True)
class PodCheck:
    """Dry runs of worker pods."""

    client: ApiClient

    async def refusal(self, observed: Observation, known: Admission) -> Refusal | None:
        """The API server's refusal of the job's worker pod. None: it would admit the pod, or that is unknown.

        Requested once per generation of the job, and recorded in `known`. For a job that has ended the last
        answer is returned; for an invalid spec None. A full quota says nothing of the pod: the last answer
        stays, and the next reconcile tries again. Raises ApiError for transient errors, connection errors.
        """
        generation = observed.metadata.generation
        if observed.status.finished or known.tried_generation == generation:
            return known.refusal
        if rules.validate(observed.spec):
            return None  # `decide` reports these faults better than a dry run of half a spec
        spec = TrainingJobSpec.model_validate(observed.spec)
        try:
            known.refusal = await self._dry_run_as_allowed(observed, spec)
        except QuotaExceeded:
            return known.refusal  # nothing is known of the pod, and a running job has its pods already
        known.tried_generation = generation
        return known.refusal

    async def _dry_run_as_allowed(self, observed: Observation, spec: TrainingJobSpec) -> Refusal | None:
        """Dry run of the pod as written, and if Pod Security refuses that, as a user that is not root. If the
        second one is admitted, the refusal of the first has that user. None: admitted as written. Raises as
        `_dry_run`."""
        pod = workerpod.dry_run_pod(observed, spec)
        refusal = await self._dry_run(pod)
        if refusal is None or not refusal.by_pod_security:
            return refusal
        user = nonroot.user_of(pod)
        with suppress(QuotaExceeded):  # the quota is checked last: Pod Security has admitted the pod
            if await self._dry_run(workerpod.dry_run_pod(observed, spec, user)) is not None:
                return refusal
        return refusal.model_copy(update={"user": user})

    async def _dry_run(self, pod: Object) -> Refusal | None:
        """One dry run. None: admitted. A pod that exists already was admitted before. Raises QuotaExceeded,
        ApiError for transient errors, connection errors."""
        try:
            await self.client.create(pod, dry_run=True)
        except OwnedObjectExists:
            pass
        except QuotaExceeded:
            raise
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            return Refusal(message=error.message[:_LONGEST_REFUSAL])
        return None
