"""A snapshot replays: `explain` shows from a file what the operator would have done."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until_async
from tests.builders import a_running_job, an_incident, reporting, seconds, unreachable, written
from tests.controller.house import job, operator_of

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.show import inspect
from ropeteam.controller.client import access
from ropeteam.controller.client.apiclient import ApiClient, ApiError
from ropeteam.core.decide import decide
from ropeteam.core.seen.observation import Observation
from ropeteam.local.cluster import LocalCluster
from ropeteam_trainer.contract.desired import RecoveryTimes
from ropeteam_trainer.contract.world import Cause


async def test_explain_replays_a_snapshot(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        ApiClient(partial(access.load, cluster.kubeconfig)) as client,
    ):
        await client.create(job(env=[{"name": "PIN", "value": "s3cr3t"}]))
        fresh = await inspect.snapshot(client, "default", "job")
        assert fresh.spec["env"] == [{"name": "PIN", "value": "***1"}]
        assert decide(fresh).status.attempt == 1
        async with operator_of(cluster):

            async def made() -> Observation | None:
                seen = await inspect.snapshot(client, "default", "job")
                return seen if len(seen.pods) == 3 and seen.secret_exists else None

            seen = await wait_until_async("all pods and the Secret are there", made)
    text = seen.model_dump_json().encode()
    assert Observation.model_validate_json(text) == seen
    assert seen.secret_age == 0, "read just now: not made again for a pod that waits to mount it"
    lines = list(inspect.explanation(text, "file"))
    assert f"  decision: {decide(seen).why}" in lines
    assert not [line for line in lines if "would create" in line], "everything is there already"


async def test_a_snapshot_only_reads(tmp_path: Path) -> None:
    """The API server would refuse a dry run by someone who may not create pods, whatever it says of the job's
    own."""
    methods = set[str]()
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        ApiClient(partial(access.load, cluster.kubeconfig)) as client,
        ApiClient(
            partial(access.load, cluster.kubeconfig), lambda: False, lambda method, _: methods.add(method)
        ) as reader,
    ):
        await client.create(job())
        seen = await inspect.snapshot(reader, "default", "job")
    assert seen.refusal is None
    assert methods == {"GET"}


async def test_a_snapshot_of_a_refused_job_shows_the_refusal_that_status_reports(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        ApiClient(partial(access.load, cluster.kubeconfig)) as client,
    ):
        await client.create(job(template={"metadata": {"labels": {"a": "not a label"}}}))
        async with operator_of(cluster):

            async def refused() -> Observation | None:
                seen = await inspect.snapshot(client, "default", "job")
                return seen if seen.refusal else None

            seen = await wait_until_async("the job is not Accepted", refused)
    assert seen.refusal
    assert not seen.refusal.message.startswith("The API server refuses")
    lines = list(inspect.explanation(seen.model_dump_json().encode(), "file"))
    assert lines[-1] == "  would change nothing"


class ReaderOfANamespace(ApiClient):
    """A client whose user has a Role, and so may not list Nodes."""

    async def request(self, *args: Any, **fields: Any) -> Any:
        if args[1] == "/api/v1/nodes":
            raise ApiError(403, 'nodes is forbidden: User "reader" cannot list resource "nodes"')
        return await super().request(*args, **fields)


async def test_a_snapshot_needs_no_right_to_read_nodes_and_notes_what_is_unknown(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        ReaderOfANamespace(partial(access.load, cluster.kubeconfig)) as reader,
    ):
        await reader.create(job())
        notes: list[str] = []
        seen = await inspect.snapshot(reader, "default", "job", notes.append)
    assert seen.metadata.name == "job"
    (note,) = notes
    assert note.startswith(
        "note: no lost node is recognised here, since nodes cannot be read: nodes is forbid"
    )


async def test_a_snapshot_of_no_job_is_refused(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        ApiClient(partial(access.load, cluster.kubeconfig)) as client,
    ):
        with pytest.raises(InvalidInput, match="no TrainingJob nothing"):
            await inspect.snapshot(client, "default", "nothing")


def test_explain_of_a_job_that_runs_shows_how_it_is_and_what_was_last() -> None:
    first, last = an_incident(Cause.HANG), an_incident(Cause.SIGNAL, slot=1, n=2, message="SIGKILL\nstep 6")
    report = reporting(
        incidents=(first, replace(last, recovery_milliseconds=RecoveryTimes(first_step=900), steps_lost=3))
    )
    seen = a_running_job().after(report, written)
    assert list(inspect.explanation(seen.model_dump_json().encode(), "file"))[:5] == [
        "mnist: Running - ready 4/4",
        "  since 2026-11-20 12:00:03 UTC, for 0s: WorldRunning",
        "  last incident 1.0.2: Signal in slot 1 (rank 1): recovered in 0.9 s, 3 steps lost - SIGKILL",
        f"  decision: {decide(seen).why}",
        "  would change nothing",
    ]


def test_explain_shows_what_a_person_must_act_on() -> None:
    seen = a_running_job().after(unreachable, written, seconds(600))
    lines = list(inspect.explanation(seen.model_dump_json().encode(), "file"))
    assert [line for line in lines if line.startswith("  Stalled: CoordinatorUnreachable: ")]


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        (ConditionType.ACCEPTED, "False", "  next: correct the manifest as described above"),
        (ConditionType.FAILED, "True", "  next: ropeteam logs mnist -n lab; when that is fixed"),
        (ConditionType.COMPLETE, "True", ""),
    ],
)
def test_explain_ends_its_summary_with_what_can_be_done(
    kind: ConditionType, status: str, expected: str
) -> None:
    seen = a_running_job()
    times: dict[str, Any] = {"last_transition_time": seen.now}
    explained = Condition(type=kind, status=status, reason="Why", message="It is so.", **times)
    seen = seen.but(status=seen.status.model_copy(update={"conditions": (explained,)}))
    lines = list(inspect.explanation(seen.model_dump_json().encode(), "file"))
    assert "Why" in lines[1]
    assert [line for line in lines if line.startswith("  next: ")] == [
        line for line in lines if expected and line.startswith(expected)
    ]
    assert any(expected in line for line in lines)
