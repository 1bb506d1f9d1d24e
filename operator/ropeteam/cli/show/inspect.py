"""`ropeteam snapshot` and `ropeteam explain`: an Observation to a file, and from a file to the decision it
leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from pydantic import ValidationError

from ropeteam.api.columns import duration
from ropeteam.api.defaults import Defaults
from ropeteam.api.status import JobStatus
from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.show.follow import JobPoller, missing_job_error
from ropeteam.cli.show.jobview import TO_ACT_ON, job_view
from ropeteam.cli.show.redaction import masked_observation
from ropeteam.cli.show.screen import NewIncidents, plain_line
from ropeteam.controller.cache.caches import make_caches
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import ApiClient, ApiError
from ropeteam.controller.reconcile.jobread import read_job
from ropeteam.controller.reconcile.jobstates import JobStates
from ropeteam.controller.reconcile.observer import Observer
from ropeteam.controller.settings import IMAGE, OperatorKey, OperatorKeys
from ropeteam.core.decide import decide
from ropeteam.core.questions.acceptance import reported_refusal
from ropeteam.core.seen.observation import Observation


async def snapshot(
    client: ApiClient, namespace: str, name: str, note: Callable[[str], None] = lambda _: None
) -> Observation:
    """Observation of the job as an operator that has just started would make it, secrets masked. Only reads.

    Each informer lists once instead of watching. Then the fields that an operator knows from its own requests
    are set: the Secret as it is, its age as 0, and the refusal that status reports, since a dry run of a pod
    would be a write. Nodes may be forbidden to a user of one namespace: then none counts as lost, and `note`
    prints it. Raises InvalidInput if there is no such job, ApiError for anything else that may not be read.
    """
    poller = JobPoller(client, namespace, name)
    caches = make_caches(client, (namespace,), lambda _: None)
    for informer in caches.informers:
        try:
            await informer.list()
        except ApiError as error:
            if informer.kind != "Node" or error.status != 403:
                raise
            note(
                f"note: no lost node is recognised here, since nodes cannot be read: {error}; an operator "
                "that may read them may decide otherwise"
            )
    key = Key(namespace, name)
    read, job = await read_job(caches, key), await poller.fetch_job()
    if read is None or job is None:
        raise missing_job_error(namespace, name)
    secrets = await poller.fetch_secrets(read.metadata.uid)
    report = None if read.status.finished else await poller.fetch_report(job)
    observer = Observer(
        caches=caches,
        keys=OperatorKeys((OperatorKey(b""),)),  # unknown here; what it leads to is replaced below
        defaults=Defaults(operator_image=IMAGE),
        clock=lambda: datetime.now(UTC),
    )
    state = JobStates().state_of(key, read.metadata.uid, observer.own_clock())
    seen = observer.observe(read, state, report, error="")
    fields = {
        "secret_exists": bool(secrets),
        "secret_age": 0.0,
        "key_id": secrets[-1]["metadata"]["name"].rpartition("-")[2] if secrets else "",
        "refusal": reported_refusal(read.status, read.metadata.generation),
    }
    return masked_observation(seen.model_copy(update=fields))


def explanation(text: bytes, source: str) -> Iterator[str]:
    """Lines: summary of the job's state, the operator's decision and its reason, and what it would do.

    text: a snapshot as JSON. source: its file or job, for the message. Raises InvalidInput for another text.
    """
    try:
        seen = Observation.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InvalidInput(
            f"{source} is not a snapshot of this release ({where}: {first['msg']}); "
            "create one: ropeteam snapshot JOB"
        ) from None
    decision = decide(seen)
    yield from _state_lines(seen, decision.status)
    yield f"  decision: {decision.why}"
    if decision.status != seen.status:
        yield f"  would save state {decision.status.state}"
    yield from (f"  would create event {each.reason}: {each.message}" for each in decision.announcements)
    yield from (f"  would {action}" for action in decision.actions)
    if decision.status == seen.status and not decision.actions:
        yield "  would change nothing"
    if decision.requeue_after_seconds is not None:
        yield f"  would reconcile again within {decision.requeue_after_seconds:.1f} s"


def _state_lines(seen: Observation, next_status: JobStatus) -> Iterator[str]:
    """Lines: state of the job and since when, conditions to act on, the last incident, and the next step.

    next_status: as the operator would save it now. Its conditions are newer than those in the snapshot.
    """
    view = job_view(seen.metadata.name, seen.status, seen.report, seen.now)
    yield plain_line(view, "")
    if view.since is not None:
        ago = duration(max(0, round((seen.now - view.since).total_seconds())))
        yield f"  since {view.since:%Y-%m-%d %H:%M:%S} UTC, for {ago}: {view.reason}"
    for kind in TO_ACT_ON:
        found = next_status.condition(kind)
        if found is not None and found.holds:
            yield f"  {kind.value}: {found.reason}: {found.message}"
    yield from (f"  last {line}" for line in NewIncidents().take_lines(view)[-1:])
    where = "" if seen.metadata.namespace == "default" else f" -n {seen.metadata.namespace}"
    if view.refused:
        yield "  next: correct the manifest as described above, and kubectl apply it again"
    elif view.finished and not view.complete:
        again = "when that is fixed, kubectl delete the job and apply it again"
        yield f"  next: ropeteam logs {view.name}{where}; {again}"
