"""A folder goes with its job into a cluster, all of it or none of it, and away with the job."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from lab.waiting import wait_until
from tests.cli import test_commands

from ropeteam.cli.connect import connected
from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.main import cli
from ropeteam.cli.manifest import bundle
from ropeteam.controller.client.apiclient import Object, ObjectRef

home, up = test_commands.home, test_commands.up
TRAIN = """import os, pathlib, subprocess, pkg.model
print(pkg.model.NAME, pathlib.Path("data/words.bin").read_bytes(), os.environ["RANK"])
print(subprocess.run(["./tool.sh"], capture_output=True, text=True).stdout.strip())
"""
MOUNTED = {"name": "mine", "mountPath": "/code"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small project as people have them."""
    src = tmp_path / "src"
    for name, data in {
        "train.py": TRAIN.encode(),
        "pkg/__init__.py": b"",
        "pkg/model.py": b"NAME = 'tiny'\n",
        "pkg/__pycache__/model.pyc": b"old",
        "data/words.bin": b"\x00\xff\xfe",
        "data/huge.bin": bytes(600 << 10),
        "tool.sh": b"#!/bin/sh\necho from a tool\n",
        ".env": b"WANDB_API_KEY=secret",
        ".git/config": b"",
        "id.pem": b"secret",
        "venv/pyvenv.cfg": b"",
    }.items():
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_bytes(data)
    (src / "tool.sh").chmod(0o755)
    (src / "elsewhere").symlink_to("/etc")
    os.mkfifo(src / "pipe")
    return src


def a_job(**spec: Any) -> Object:
    meta = {"name": "job", "namespace": "default"}
    base = {"workers": 2, "image": "local", "command": ["python", "train.py"]}
    return {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": meta,
        "spec": base | spec,
    }


def test_what_is_no_code_is_left_out_and_listed(folder: Path) -> None:
    code = bundle.read_folder(folder)
    assert sorted(code.files) == ["data/words.bin", "pkg/__init__.py", "pkg/model.py", "tool.sh", "train.py"]
    assert code.executable == {"tool.sh"}
    assert set(code.left_out) == {
        ".env",
        ".git",
        "data/huge.bin (0.6 MiB)",
        "elsewhere (a link)",
        "id.pem",
        "pipe (not a regular file)",
        "pkg/__pycache__",
        "venv (a virtual environment)",
    }
    first, second = bundle.summary_lines(code, "job-code-1", "ml")
    assert first.startswith("configmap/job-code-1: 5 files, 0.3 KiB, readable by users that may read")
    assert second.startswith("left out: .env, .git, data/huge.bin (0.6 MiB), ")


def test_what_is_too_much_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no file in it is code"):
        bundle.read_folder(tmp_path)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(bytes(400_000))
    with pytest.raises(InvalidInput, match=r"a ConfigMap holds no more.* a \(0.4 MiB\), b .*a git commit"):
        bundle.read_folder(tmp_path)


def test_what_the_job_has_already_stays(folder: Path) -> None:
    code = bundle.read_folder(folder)
    mount = {"name": "data", "mountPath": "/data"}
    containers = [{"name": "sidecar"}, {"name": "trainer", "volumeMounts": [mount]}]
    given = a_job(workingDir="/code/pkg", template={"spec": {"containers": containers}})
    spec = bundle.with_mounted_code(given, code, "job-code-1")["spec"]
    assert spec["workingDir"] == "/code/pkg"
    assert [each["name"] for each in spec["template"]["spec"]["containers"]] == ["sidecar", "trainer"]
    assert spec["template"]["spec"]["containers"][1]["volumeMounts"][0] == mount
    assert given["spec"]["template"]["spec"].keys() == {"containers"}, "what was given is not changed"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"workingDir": "/work"}, "spec.workingDir is /work, but the folder is mounted at /code"),
        ({"workingDir": "/codes"}, "spec.workingDir is /codes"),
        ({"template": {"spec": {"volumes": [{"name": "code"}]}}}, "already has a volume code"),
        (
            {"template": {"spec": {"containers": [{"name": "trainer", "volumeMounts": [MOUNTED]}]}}},
            "already mounts a volume at /code",
        ),
    ],
)  # fmt: skip
def test_what_is_in_the_way_is_named(folder: Path, spec: Any, expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        bundle.with_mounted_code(a_job(**spec), bundle.read_folder(folder), "job-code-1")


def submit(home: Path, folder: Path, job: Object) -> Result:
    file = folder.parent / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    where = ["--kubeconfig", str(home / "kubeconfig")]
    return CliRunner().invoke(cli, ["submit", str(folder), str(file), *where])


def stored(home: Path) -> list[Object]:
    async def look() -> list[Object]:
        async with connected(home / "kubeconfig") as client:
            return await client.items(ObjectRef("ConfigMap", "default"), labels="ropeteam.dev/code-of=job")

    return asyncio.run(look())


def delete(home: Path) -> None:
    async def work() -> None:
        async with connected(home / "kubeconfig") as client:
            place = ObjectRef("TrainingJob", "default", "job")
            await client.delete(place, uid=(await client.get(place))["metadata"]["uid"])

    asyncio.run(work())


@pytest.mark.usefixtures("up")
def test_a_submitted_job_runs_its_folder_and_takes_it_along(home: Path, folder: Path) -> None:
    done = submit(home, folder, a_job())
    assert done.exit_code == 0, done.output
    assert "trainingjob/job created; its output: ropeteam logs job -f" in done.output
    where = ["--kubeconfig", str(home / "kubeconfig")]
    printed = CliRunner().invoke(cli, ["logs", "job", "-f", *where]).output.splitlines()
    for rank in (0, 1):
        assert f"[rank {rank}] tiny b'\\x00\\xff\\xfe' {rank}" in printed
        assert f"[rank {rank}] from a tool" in printed
    (code,) = stored(home)
    assert code["immutable"]
    again = submit(home, folder, a_job())
    assert again.exit_code == 2
    assert "TrainingJob job already exists in namespace default" in again.output
    assert len(stored(home)) == 1
    delete(home)
    wait_until("its code is gone too", lambda: not stored(home))


@pytest.mark.usefixtures("up")
def test_a_job_that_is_refused_leaves_nothing_behind(home: Path, folder: Path) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "Not A Name"}}
    file = folder.parent / "job.yaml"
    file.write_text(yaml.safe_dump_all([claim, a_job()]))
    where = ["--kubeconfig", str(home / "kubeconfig")]
    done = CliRunner().invoke(cli, ["submit", str(folder), str(file), *where])
    assert done.exit_code == 2, done.output
    assert "PersistentVolumeClaim Not A Name was refused" in done.output
    assert stored(home) == []
