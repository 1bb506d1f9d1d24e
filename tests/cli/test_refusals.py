"""Manifests that cannot work are refused field by field, with exit code 2; help is quick."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.main import cli
from ropeteam.cli.manifest.read import read_arguments, read_manifest

VALID = """
apiVersion: ropeteam.dev/v1alpha1
kind: TrainingJob
metadata: {name: good}
spec: {workers: 2, image: local, command: [python, train.py]}
"""
CLAIM = """
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteMany]}
"""


def ropeteam(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


def test_help_imports_nothing_that_is_slow() -> None:
    code = (
        "import sys; from ropeteam.cli.main import cli; cli(['--help'], standalone_mode=False);"
        "print(sorted({'aiohttp', 'kopf', 'kubernetes', 'pydantic', 'rich', 'yaml'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "snapshot" in output
    assert output.endswith("[]\n")


def test_a_valid_manifest_is_valid(file: Path) -> None:
    file.write_text(VALID + CLAIM)
    result = ropeteam("validate", str(file))
    assert result.exit_code == 0
    assert "TrainingJob good is valid" in result.output


def test_a_command_is_validated_as_the_agent_would(file: Path) -> None:
    file.write_text(VALID.replace("[python, train.py]", "[torchrun, --nnodes=4, train.py]"))
    result = ropeteam("validate", str(file))
    assert result.exit_code == 2
    assert "spec.command: --nnodes 4, but the job has 2 workers; set spec.workers to 4" in result.output
    file.write_text(VALID.replace("[python, train.py]", "[./run.sh]"))
    result = ropeteam("validate", str(file))
    assert result.exit_code == 0
    assert "spec.command: is started once per pod, as it is" in result.output


def test_every_fault_is_reported(file: Path) -> None:
    file.write_text(
        VALID.replace("workers: 2", "workers: 0, comand: [x]").replace("name: good", "name: Bad_")
    )
    result = ropeteam("validate", str(file))
    assert result.exit_code == 2
    for expected in ("metadata.name", "spec.workers", "spec.comand"):
        assert expected in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "not valid YAML"),
        ("[1, 2]", "without `kind`"),
        ("{kind: TrainingJob}", "without metadata.name"),
        (CLAIM, "0 documents of kind TrainingJob"),
        (VALID + "---" + VALID, "2 documents of kind TrainingJob"),
        (VALID + "---\nkind: Gizmo\nmetadata: {name: g}", "kind Gizmo cannot be applied here"),
        (VALID.replace("v1alpha1", "v9"), "write ropeteam.dev/v1alpha1"),
        (VALID + "workers: 2", "did you mean spec.workers?"),
    ],
)
def test_what_is_no_manifest_is_refused_with_a_reason(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    result = ropeteam("run", str(file))
    assert result.exit_code == 2
    assert expected in result.output


def test_a_missing_file_is_named() -> None:
    result = ropeteam("run", "nowhere.yaml")
    assert result.exit_code == 2
    assert "nowhere.yaml" in result.output


def test_documents_without_a_namespace_go_to_the_default_one(file: Path) -> None:
    file.write_text(VALID + CLAIM)
    manifest = read_manifest(file)
    assert (manifest.name, manifest.namespace) == ("good", "default")
    assert [each["metadata"]["namespace"] for each in manifest.others] == ["default"]


def test_a_cluster_that_is_not_there_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    result = ropeteam("watch", "job", "--home", str(tmp_path))
    assert result.exit_code == 2
    assert "ropeteam up" in result.output


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    result = ropeteam("explain", str(tmp_path / "file"))
    assert result.exit_code == 2
    assert "ropeteam snapshot JOB" in result.output


def test_the_definition_is_the_one_in_the_repository() -> None:
    file = Path(__file__).parents[2] / "crds" / "ropeteam.dev_trainingjobs.yaml"
    assert ropeteam("crd").output == file.read_text()


def test_the_schema_for_editors_is_the_one_in_the_repository() -> None:
    file = Path(__file__).parents[2] / "docs" / "trainingjob.schema.json"
    assert ropeteam("schema").output == file.read_text()


def test_a_file_that_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="cannot read"):
        read_manifest(file)


def test_a_job_of_another_operator_is_recognized(file: Path) -> None:
    file.write_text("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: mnist}\n")
    output = ropeteam("validate", str(file))
    assert output.exit_code == 2
    assert "kind PyTorchJob belongs to another operator; Ropeteam runs a TrainingJob" in output.output


def test_help_shows_the_whole_summary_of_each_command() -> None:
    output = ropeteam("--help").output
    assert "  logs " in output
    assert "..." not in output.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("expected", "write"),
    [
        ("train.py", "ropeteam run -n 2 -- torchrun train.py"),
        ("-- train.py --lr 1", "ropeteam run -n 1 -- python train.py --lr 1"),
        ("-n 3 -- train.py", "ropeteam run -n 3 -- torchrun train.py"),
        ("-n 2 torchrun train.py --lr 1", "ropeteam run -n 2 -- torchrun train.py --lr 1"),
        ("--keep train.py -n 2", "ropeteam run --keep -- python train.py -n 2"),
        (
            "-n 2 --logs=all python 'my train.py' -x",
            "ropeteam run -n 2 --logs=all -- python 'my train.py' -x",
        ),
        ("-n 2 -- torchrun --standalone train.py", "the job has 2 workers; leave it out"),
        (
            "-n 2 -- torchrun --nnodes 4 train.py",
            "is invalid:\n  --nnodes 4, but the job has 2 workers; write -n 4",
        ),
        ("job.yaml", "job.yaml: no such file. To run a command: ropeteam run -n 2 -- torchrun train.py"),
        ("nowhere", "nowhere: no such file or program. To run a command: ropeteam run"),
        ("job.yaml python train.py", "which has its own command; leave out: python train.py"),
    ],
)
def test_a_slip_of_the_command_line_is_answered_with_what_to_write(
    expected: str, write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    result = ropeteam("run", *shlex.split(expected))
    assert result.exit_code == 2, result.output
    assert write in result.output


def test_what_can_run_is_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text(VALID)
    assert read_arguments(("job.yaml",), None).job["spec"]["workers"] == 2
    assert read_arguments(("job.yaml",), 3).job["spec"]["workers"] == 3, "of a manifest, instead"
    file.rename("job")
    assert read_arguments(("job",), None).name == "good", "a manifest by any other name"
    Path("train.py").write_text("#!/usr/bin/env python\n")
    Path("train.py").chmod(0o755)
    assert read_arguments(("./train.py",), None).job["spec"]["command"] == ["./train.py"]
    assert read_arguments(("true",), 2).job["spec"]["workers"] == 2


def test_a_manifest_without_an_image_is_valid_on_this_machine_only(file: Path) -> None:
    file.write_text(VALID.replace("image: local, ", ""))
    result = ropeteam("validate", str(file))
    assert result.exit_code == 2, result.output
    assert "spec.image is missing, and a cluster refuses pods without one" in result.output
    assert read_arguments((str(file),), None).name == "good"
    template = "template: {spec: {containers: [{name: trainer, image: mine}]}}"
    file.write_text(VALID.replace("image: local", template))
    assert ropeteam("validate", str(file)).exit_code == 0
