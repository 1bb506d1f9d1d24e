"""`make demo`: a real model trains on three local workers, and loses a rank and a pod without losing a bit.

    python examples/demo.py

After the first checkpoint one rank's process is killed (SIGKILL); later one pod is deleted through the API.
Then the same job trains again, undisturbed, on two workers. Exit status 0 only if both faults happened, both
were recovered from without a lost step, both jobs are Complete with equal weights, and the model has learned.
Begins from nothing each time: the demo has a state folder of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ropeteam.cli import errors
from ropeteam.cli.asyncrun import run_interruptible
from ropeteam.cli.localstack import LocalStack
from ropeteam.cli.manifest.read import Manifest, read_manifest
from ropeteam.cli.run import Alongside, JobResult, run_job
from ropeteam.cli.show.follow import POLL_SECONDS, JobPoller
from ropeteam.cli.show.jobview import JobView, recovery_seconds
from ropeteam.controller.client.apiclient import AlreadyGone, ApiClient, ObjectRef
from ropeteam.controller.settings import default_home

MANIFEST = Path(__file__).with_name("exact.yaml")
KILLED_RANK, DELETED_SLOT = 1, 2
UNDISTURBED_WORKERS = 2
STEPS_BETWEEN = 100
"""Steps from the start to the first fault, and from its recovery to the second."""
MAX_LOSS = 1.65
"""Validation loss; it starts at about 4.5, the loss of guessing."""


class _Ended(Exception):
    """End of the job before all faults were injected."""


def main() -> int:
    home = default_home(os.environ) / "demo"
    shutil.rmtree(home / "claims", ignore_errors=True)
    console = Console()
    try:
        failed = run_interruptible(_train_twice(home, console))
    except errors.CommandError as error:
        error.show()
        return error.exit_code
    for each in failed:
        console.print(f"demo failed: {each}", soft_wrap=True)
    return 1 if failed else 0


async def _train_twice(home: Path, console: Console) -> list[str]:
    """Train with faults, then without. Returns the expectations that did not hold."""
    manifest = read_manifest(MANIFEST)
    console.print(
        f"Training {MANIFEST.name} on {manifest.spec.workers} local workers. Rank {KILLED_RANK} will be "
        f"killed, and the pod of slot {DELETED_SLOT} deleted.",
        soft_wrap=True,
    )
    disturbed = await _train(manifest, home, console, inject_faults)
    if failed := list(failed_checks(disturbed)):
        return failed
    console.print(f"Training it again on {UNDISTURBED_WORKERS} workers, undisturbed.")
    undisturbed = await _train(_undisturbed(manifest), home, console)
    if failed := list(failed_comparisons(disturbed, undisturbed)):
        return failed
    first, second = final_figures(disturbed.first_slot_log), final_figures(undisturbed.first_slot_log)
    console.print(
        f"weights with both faults, {manifest.spec.workers} workers: {first['weights']}\n"
        f"weights undisturbed, {UNDISTURBED_WORKERS} workers:      {second['weights']}\n"
        f"demo passed: validation loss {first['validation_loss']}, two faults survived, weights are equal"
    )
    return []


def _undisturbed(manifest: Manifest) -> Manifest:
    """Manifest of the same training under another name, which does not resume from the first."""
    job = manifest.job
    metadata = {**job["metadata"], "name": f"{manifest.name}-undisturbed"}
    spec = {**job["spec"], "workers": UNDISTURBED_WORKERS}
    return replace(manifest, job={**job, "metadata": metadata, "spec": spec})


async def _train(
    manifest: Manifest, home: Path, console: Console, alongside: Alongside | None = None
) -> JobResult:
    async with LocalStack(home) as local:
        return await run_job(manifest, local, console, keep=False, alongside=alongside)


async def inject_faults(client: ApiClient, follower: JobPoller) -> None:
    """Kill a rank after the first checkpoint; delete a pod some steps after the job has recovered.

    A job that ends before ends this too; `failed_checks` reports it.
    """
    with suppress(_Ended):
        await _inject_faults(client, follower)


async def _inject_faults(client: ApiClient, follower: JobPoller) -> None:
    before = await _wait_until(
        follower, lambda seen: seen.checkpoint_step is not None and seen.step >= STEPS_BETWEEN
    )
    job = await client.get(ObjectRef("TrainingJob", follower.namespace, follower.name))
    os.kill(rank_process(job["metadata"]["uid"], KILLED_RANK), signal.SIGKILL)
    after = await _wait_until(follower, lambda seen: _recovered_count(seen) > _recovered_count(before))
    await _wait_until(follower, lambda seen: seen.step >= after.step + STEPS_BETWEEN)
    pods = await follower.fetch_pods()
    (pod,) = (p for p in pods if p["metadata"]["labels"]["ropeteam.dev/slot"] == str(DELETED_SLOT))
    ref = ObjectRef("Pod", follower.namespace, pod["metadata"]["name"])
    try:
        await client.delete(ref, uid=pod["metadata"]["uid"])
    except AlreadyGone:
        raise errors.CommandFailed(f"the pod {ref.name} was gone before the demo could delete it") from None


def failed_checks(ending: JobResult) -> Iterator[str]:
    """Expectations of the demo that did not hold."""
    seen = ending.view
    if not seen.complete:
        yield f"the job is {seen.state}: {seen.why}"
    signals = [each for each in seen.incidents if each.cause == "Signal" and each.rank == KILLED_RANK]
    deletions = [each for each in seen.incidents if each.cause == "PodDeleted" and each.slot == DELETED_SLOT]
    if len(signals) != 1:
        yield f"{len(signals)} incidents report the killed rank {KILLED_RANK}, expected 1"
    if len(deletions) != 1:
        yield f"{len(deletions)} incidents report the deleted pod of slot {DELETED_SLOT}, expected 1"
    for each in (*signals, *deletions):
        if recovery_seconds(each) is None or each.steps_lost is None:
            yield f"incident {each.id} ({each.cause}) has no recovery time or number of steps lost"
        elif each.steps_lost:
            yield f"incident {each.id} ({each.cause}) has cost {each.steps_lost} steps, expected 0"
    loss = final_figures(ending.first_slot_log).get("validation_loss")
    if loss is None or loss > MAX_LOSS:
        yield f"the validation loss is {loss}, expected at most {MAX_LOSS}"


def failed_comparisons(disturbed: JobResult, undisturbed: JobResult) -> Iterator[str]:
    """Expectations of the second training that did not hold."""
    seen = undisturbed.view
    if not seen.complete:
        yield f"the undisturbed job is {seen.state}: {seen.why}"
    if seen.incidents:
        yield f"the undisturbed job has {len(seen.incidents)} incidents, expected none"
    weights = [final_figures(each.first_slot_log).get("weights") for each in (disturbed, undisturbed)]
    if None in weights or weights[0] != weights[1]:
        yield f"the weights are {weights[0]} with both faults, and {weights[1]} undisturbed"


def final_figures(log: str) -> dict[str, Any]:
    """Figures in rank 0's last output: `RESULT {"validation_loss": 1.6, ...}`. Empty: there are none."""
    found = re.findall(r"RESULT (\{.*\})", log)
    return dict(json.loads(found[-1])) if found else {}


async def _wait_until(follower: JobPoller, condition: Callable[[JobView], bool]) -> JobView:
    while True:
        seen = await follower.poll()
        if seen is None or seen.finished:
            raise _Ended
        if condition(seen):
            return seen
        await asyncio.sleep(POLL_SECONDS / 5)


def _recovered_count(seen: JobView) -> int:
    return sum(recovery_seconds(each) is not None for each in seen.incidents)


def rank_process(job_uid: str, rank: int) -> int:
    """Process that runs the script as this rank: it leads a session of its own. Raises CommandFailed."""
    variables = {f"RANK={rank}".encode(), f"TORCHELASTIC_RUN_ID={job_uid}".encode()}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = set((entry / "environ").read_bytes().split(b"\0"))
            is_session_leader = os.getsid(int(entry.name)) == int(entry.name)
        except OSError:
            continue
        if is_session_leader and variables <= environ:
            return int(entry.name)
    raise errors.CommandFailed(f"no process runs rank {rank}")


if __name__ == "__main__":
    sys.exit(main())
