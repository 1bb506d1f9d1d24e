"""A job that cannot work ends within seconds, with a message that names the fault, its field and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.local.cluster import JOBS, Cluster, Refused
from lab.local.jobs import job, ticking
from lab.waiting import wait_until

REFUSED = [
    ({"workers": 0}, "spec.workers"),
    ({"wrokers": 2}, "wrokers"),
    ({"command": []}, "spec.command"),
    ({"env": [{"name": "RANK", "value": "0"}]}, "RANK"),
    ({"recovery": {"lostSeconds": 30, "fenceSeconds": 20}}, "fenceSeconds"),
    ({"resume": {"policy": "Step"}}, "spec.resume.step"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_the_server_refuses_and_names_the_field(
    cluster: Cluster, name: str, tmp_path: Path, change: dict[str, Any], named: str
):
    bad = ticking(name, tmp_path)
    bad["spec"].update(change)
    with pytest.raises(Refused) as refused:
        cluster.call("POST", f"{JOBS}?fieldValidation=Strict", bad)
    assert refused.value.code in (400, 422)
    assert named in refused.value.text


def failed(cluster: Cluster, name: str, reason: str) -> str:
    condition = cluster.wait_condition(name, "Failed")
    assert condition["reason"] == reason, condition
    assert cluster.status(name)["failures"].get("charged", 0) <= 1
    return str(condition["message"])


def test_a_command_that_is_not_found(cluster: Cluster, name: str):
    cluster.create(job(name, ["pyton", "train.py"]))
    assert "pyton" in failed(cluster, name, "CommandNotFound")


def test_an_unknown_torchrun_flag(cluster: Cluster, name: str):
    cluster.create(job(name, ["torchrun", "--nproc-per-rank", "1", "train.py"]))
    assert "--nproc-per-rank" in failed(cluster, name, "LauncherRefused")


def test_an_interpreter_without_torch(cluster: Cluster, name: str, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("print('never')\n")
    cluster.create(job(name, ["/usr/bin/python3", "-I", str(script)], torch=True))
    message = failed(cluster, name, "InterpreterWithoutTorch")
    assert "/usr/bin/python3" in message


def test_a_claim_that_does_not_exist(cluster: Cluster, name: str, tmp_path: Path):
    volume = {"persistentVolumeClaim": {"claimName": "nobody-made-this"}}
    cluster.create(ticking(name, tmp_path, checkpoint={"volume": volume}))

    def is_reported() -> bool:
        return "nobody-made-this" in str(cluster.status(name).get("conditions"))

    wait_until("the missing claim in a condition", is_reported)


def test_a_checkpoint_folder_that_cannot_be_written(cluster: Cluster, name: str, tmp_path: Path):
    blocked = tmp_path / "volume"
    blocked.write_text("a file, not a folder")
    volume = {"hostPath": {"path": str(blocked)}}
    cluster.create(ticking(name, tmp_path, checkpoint={"volume": volume}))
    assert "spec.checkpoint" in failed(cluster, name, "CheckpointNotWritable")


def test_a_script_that_is_missing(cluster: Cluster, name: str):
    cluster.create(job(name, ["python", "no-such-train.py"]))
    assert "no-such-train.py" in failed_any(cluster, name)


def test_a_data_file_that_is_missing(cluster: Cluster, name: str):
    recipe = ["python", "-m", "ropeteam_trainer.recipes.char_gpt", "--text", "/no/such/text"]
    cluster.create(job(name, recipe, workers=1, torch=True))
    assert "/no/such/text" in failed_any(cluster, name)


def failed_any(cluster: Cluster, name: str) -> str:
    return str(cluster.wait_condition(name, "Failed")["message"])
