"""`ropeteam plan` with real scripts: what it prints, what it refuses, and that nothing is trained."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from lab.ranks.forked import Forked, prepare

from ropeteam.api.job import TrainingJobSpec
from ropeteam.cli.main import cli
from ropeteam.cli.planning import cost as plan
from ropeteam_trainer.partition.answer import DryRunResult, Model, ModelPart, Tensor

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import torch, ropeteam_trainer
data = torch.randn(100, 8)
scale = data.std().item()
job = ropeteam_trainer.init()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
"""
WRAP = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = job.wrap(model, optimizer, loss=torch.nn.functional.mse_loss)
"""
LOOP = """\
for batch in data.split(10):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
open("trained", "w").close()
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [str(ROOT / "trainer-image"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test has many scripts. In all others, each is started by exec."""
    prepare()
    monkeypatch.setattr(subprocess, "Popen", Forked)


SERVED = {"sync": {"type": "ParameterServer", "parameterServer": {"servers": 2}}}


def planned(script: str | None, *options: str, **spec: Any) -> Result:
    """The script's plan. Whatever it is, nothing was trained."""
    if script is not None:
        Path("train.py").write_text(script)
    fields = {"workers": 4, "image": "none", "command": ["python", "train.py"], **spec}
    job = {"apiVersion": "ropeteam.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"}}
    Path("job.yaml").write_text(yaml.safe_dump({**job, "spec": fields}))
    patience = ("--timeout-seconds", "600")  # a busy machine imports torch for more than a minute
    result = CliRunner().invoke(cli, ["plan", "job.yaml", *patience, *options])
    assert not Path("trained").exists()
    return result


def ways(pipeline: int = 1, tensor: int = 1, **more: Any) -> dict[str, Any]:
    return {"strategy": {"parallelism": {"pipeline": pipeline, "tensor": tensor}, **more}}


def rows(result: Result) -> dict[str, str]:
    """The first line of each row."""
    assert result.exit_code == 0, result.output
    pairs = [(line[:16].strip(), line[16:]) for line in result.output.splitlines()]
    return {name: text for name, text in reversed(pairs) if name}


def test_a_script_is_planned_from_its_manifest_alone() -> None:
    found = rows(
        planned(
            SCRIPT + WRAP + LOOP,
            processesPerWorker=2,
            strategy={
                "parallelism": {"pipeline": 2, "shard": 2, "replicate": 2},
                "batch": {"globalSamples": 512},
                "learningRate": {"scaling": "Linear", "baseBatch": 128, "warmupSteps": 10},
            },
        )
    )
    assert found["ranks"] == "8 = 4 workers x 2"
    assert found["mesh"] == "pipeline 2 x replicate 2 x shard 2"
    assert found["model"] == "280 parameters, SGD"
    assert found["memory"] == "1.15 kB on the rank that holds most (0)", (
        "72 numbers; whole gradients while adding up"
    )
    assert found["bubble"] == "20.0 % of a step (OneForwardOneBackward, 4 micro-batches, 2 ranks)"
    assert found["batch"] == "512 samples a step, in 4 parts of 128, in 4 micro-batches"
    assert found["learning rate"] == "0.1 x 4 (Linear) = 0.4, after 10 steps of warm-up"


def test_parts_that_follow_speed_are_equal_at_first_only() -> None:
    found = rows(planned(SCRIPT + WRAP + LOOP, strategy={"batch": {"globalSamples": 12, "balance": True}}))
    assert found["batch"] == "12 samples a step, in 4 parts of 3 at first, then by speed"


@pytest.mark.usefixtures("_forked")
def test_several_manifests_are_planned_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    planned(SCRIPT + WRAP)
    Path("b.yaml").write_text(Path("job.yaml").read_text().replace("name: job", "name: other"))
    result = CliRunner().invoke(cli, ["plan", "job.yaml", "b.yaml", "-n", "2", "--timeout-seconds", "600"])
    assert result.exit_code == 0, result.output
    head, *found = [re.split(r"\s{2,}", line.strip()) for line in result.output.splitlines() if line.strip()]
    assert head == ["job", "other"]
    assert ["ranks", *["2 = 2 workers x 1"] * 2] in found
    (memory,) = (each for each in found if each[0] == "memory")
    assert len(memory) == 3
    assert memory[1] == memory[2]
    assert result.output.endswith("time is not: ropeteam run measures it.\n")


@pytest.mark.usefixtures("_forked")
def test_a_command_is_planned_as_run_would_start_it() -> None:
    Path("train.py").write_text(SCRIPT + WRAP)
    command = ["plan", "-n", "3", "--timeout-seconds", "600", "--", "torchrun", "train.py"]
    assert rows(CliRunner().invoke(cli, command))["ranks"] == "3 = 3 workers x 1"
    forgotten = CliRunner().invoke(cli, ["plan", "torchrun", "train.py", "--lr", "1"])
    assert "ropeteam plan -- torchrun train.py --lr 1" in forgotten.output


@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize(
    ("example", "strategy", "model", "memory", "traffic"),
    [
        ("digits", None, "8,970 parameters, AdamW", "144 kB on each rank", "35.9 kB sent"),
        ("digits", {"sharding": "Parameters"}, "8,970 parameters, AdamW", "71.8 kB on each", "53.8 kB"),
        ("digits", SERVED, "8,970 parameters, AdamW", "71.8 kB on each rank", "35.9 kB sent"),
        ("char-gpt", None, "116,224 parameters, AdamW", "1.86 MB on each rank", "620 kB sent"),
        (
            "char-gpt",
            {"sharding": "OptimizerState"},
            "116,224 parameters, AdamW",
            "1.24 MB on",
            "930 kB sent",
        ),
    ],
)
def test_the_examples_are_planned(
    example: str, strategy: Any, model: str, memory: str, traffic: str, tmp_path: Path
) -> None:
    documents = list(yaml.safe_load_all((ROOT / "examples" / f"{example}.yaml").read_text()))
    if strategy is not None:
        documents[0]["spec"]["strategy"] = strategy
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(documents))
    found = rows(CliRunner().invoke(cli, ["plan", "job.yaml"]))
    assert found["model"] == model
    assert found["memory"].startswith(memory)
    assert found["traffic"].startswith(traffic)
    assert found.get("servers", "").startswith("2 pods more; the one that holds most has ") == (
        strategy is SERVED
    )


def test_a_model_that_would_fill_the_machine_takes_no_memory() -> None:
    huge = SCRIPT + "model = torch.nn.Linear(1_000_000, 1_000_000).to('cuda').to(torch.bfloat16)\n" + WRAP
    found = rows(planned(huge, "--workers", "2"))
    assert found["ranks"] == "2 = 2 workers x 1"
    assert found["model"] == "1,000,001,000,000 parameters, SGD"
    assert found["memory"] == "6 TB on each rank"


def test_shared_parameters_are_counted_once_and_frozen_ones_have_no_gradient() -> None:
    tied = SCRIPT + "model.append(torch.nn.Linear(8, 16))\nweight = torch.nn.Parameter(torch.ones(16, 8))\n"
    tied += "model[0].weight = model[3].weight = weight\nmodel[2].requires_grad_(False)\n"
    result = planned(tied + WRAP)
    numbers = 16 * 8 + 16 + (8 * 16 + 8) + 16
    assert rows(result)["model"] == f"{numbers} parameters, SGD"
    trained = 4 * (numbers - 8 * 16 - 8)
    assert f"parameters {plan.byte_text(4 * numbers)}, gradients {plan.byte_text(trained)}" in result.output


@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (SCRIPT + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
         "job.restore(model=model, optimizer=optimizer)\n", "calls job.restore()"),
        (SCRIPT + "for batch in job.batches(data, global_batch=10): pass\n", "calls job.batches()"),
        (SCRIPT + "job.report()\n", "calls job.report()"),
        ("import torch\ndata = torch.ones(20, 8)\nmodel = torch.nn.Linear(8, 8)\n"
         "optimizer = torch.optim.Adam(model.parameters())\n" + LOOP, "trains 72 parameters with Adam"),
        ("import torch.distributed as dist\nfrom torch import nn\ndist.init_process_group('nccl')\n"
         "assert dist.get_world_size() == 4\nnn.parallel.DistributedDataParallel(nn.Linear(8, 8))\n",
         "puts 72 parameters into DistributedDataParallel"),
        ("print('nothing')\n", "ends"),
    ],
)  # fmt: skip
def test_without_wrap_it_shows_what_is_unknown(script: str, expected: str) -> None:
    found = rows(planned(script))
    assert found["ranks"] == "4 = 4 workers x 1"
    assert found["the rest"].startswith(f"unknown: the script {expected} without job.wrap()")


def test_a_strategy_that_the_script_does_not_apply_is_refused() -> None:
    result = planned("print('nothing')", strategy={"sharding": "Parameters"})
    assert result.exit_code == 2
    assert (
        "spec.strategy is given, but the script ends without job.wrap(): call model, optimizer"
        in result.output
    )


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (None, "No such file or directory"),
        ("import nothing_like_this\n", "No module named 'nothing_like_this'"),
        (
            SCRIPT + "raise RuntimeError('no data here')\n",
            "failed before job.wrap(): RuntimeError: no data here",
        ),
    ],
)
def test_a_script_that_cannot_run_here_leaves_what_the_manifest_knows(
    script: str | None, expected: str
) -> None:
    result = planned(script, strategy={"parallelism": {"pipeline": 2}, "batch": {"globalSamples": 64}})
    found = rows(result)
    assert expected in result.output
    assert found["model"] == "unknown, and so memory and traffic"
    assert found["mesh"] == "pipeline 2 x replicate 2"
    assert found["bubble"].startswith("20.0 %")
    assert found["batch"] == "64 samples a step, in 2 parts of 32, in 4 micro-batches"


def test_a_command_that_is_not_here_is_named() -> None:
    result = planned(None, command=["/opt/nowhere/python", "train.py"])
    assert (
        'the script was not run: exec: "/opt/nowhere/python": no such file on this machine' in result.output
    )
    assert rows(result)["mesh"] == "replicate 4"


def test_a_script_that_never_comes_to_wrap_is_ended() -> None:
    result = planned("import time\ntime.sleep(3600)\n", "--timeout-seconds", "1")
    assert "did not reach job.wrap() within 1 s (--timeout-seconds)" in result.output
    assert rows(result)["mesh"] == "replicate 4"


def test_nothing_that_the_script_starts_stays_in_whichever_session() -> None:
    script = """
import subprocess
command = "setsid sleep 3600 & echo $!; sleep 3600"
left = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True)
open("pids", "w").write(f"{left.pid} {left.stdout.readline().decode()}")
"""
    planned(script)
    pids = Path("pids").read_text().split()
    assert len(pids) == 2
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"workers": 3, **ways(tensor=2)}, "use 4 ranks, or tensor and pipeline whose product divides 3"),
        (ways(pipeline=4), "3 layers cannot make 4 stages; use at most 3 ranks"),
        (ways(tensor=2), "has no plan for its split; give it a method"),
        ({"strategy": {"learningRate": {"trustRatio": "LAMB"}}}, "LAMB requires AdamW, the script has SGD"),
        (
            {"processesPerWorker": 1, "command": ["torchrun", "--nproc-per-node", "2", "train.py"]},
            "the job has 1 (spec.processesPerWorker); set that to 2",
        ),
        ({"image": None, "comand": "x"}, "comand"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_nearest_that_can(spec: dict[str, Any], expected: str) -> None:
    result = planned(SCRIPT + WRAP, **spec)
    assert result.exit_code == 2, result.output
    assert expected in result.output
    assert "spec." in result.output


@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize("ranks", [3, 8])
def test_heads_that_ranks_cannot_share_are_refused(ranks: int) -> None:
    recipe = ["python", "-m", "ropeteam_trainer.recipes.char_gpt"]
    result = planned(None, workers=ranks, command=recipe, **ways(tensor=ranks))
    assert result.exit_code == 2, result.output
    why = f"4 heads cannot be shared equally by {ranks} ranks; use 2 or 4"
    assert f"spec.strategy.parallelism.tensor: {why}" in result.output


@pytest.mark.usefixtures("_forked")
def test_unequal_parts_of_a_layer_are_refused_where_they_are_handed_on() -> None:
    def split(plan: str) -> Result:
        script = "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel\n" + SCRIPT
        script += WRAP.replace("loss=torch.nn.functional.mse_loss", f"tensor_plan=lambda _: {plan}")
        return planned(script, workers=3, **ways(tensor=3))

    handed_on = split("{'0': ColwiseParallel(), '2': RowwiseParallel()}")
    assert handed_on.exit_code == 2, handed_on.output
    assert "the 16 columns of layer '0' cannot be shared equally by 3 ranks" in handed_on.output
    assert "set tensor to a divisor of 16, for example 2" in handed_on.output
    laid_out = split("{'0': ColwiseParallel(use_local_output=False), '2': RowwiseParallel()}")
    assert rows(laid_out)["mesh"] == "tensor 3"
    gathered = split("{'0': ColwiseParallel(output_layouts=torch.distributed.tensor.Replicate())}")
    assert rows(gathered)["mesh"] == "tensor 3"


def test_environment_and_arguments_are_the_jobs() -> None:
    script = "import os, sys\nprint(os.environ['WIDTH'], sys.argv[1:], os.environ['WORLD_SIZE'])\n" + SCRIPT
    script += "assert (os.environ['WIDTH'], sys.argv[1:]) == ('8', ['--wide', '8'])\n"
    script += "assert (job.rank, job.world_size, os.environ['LOCAL_WORLD_SIZE']) == (0, 4, '1')\n"
    template = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "WIDTH", "value": "8"}]}]}}
    secret = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    found = rows(planned(script + WRAP, args=["--wide", "$(WIDTH)"], template=template, env=[secret]))
    assert found["model"] == "280 parameters, SGD"


def test_a_script_started_once_per_pod_is_not_looked_into() -> None:
    command = ["sh", "-c", "python train.py | cat"]
    result = planned(SCRIPT + WRAP, command=command, strategy={"parallelism": {"pipeline": 2}})
    found = rows(result)
    assert found["model"] == "unknown, and so memory and traffic"
    assert "sh`, which starts it; for a prediction begin spec.command with python" in result.output
    assert found["mesh"] == "pipeline 2 x replicate 2", "it may call job.wrap(): the strategy is not refused"


def test_an_optimizer_that_needs_data_is_shown_as_unknown() -> None:
    result = planned(
        SCRIPT + WRAP.replace("SGD(model.parameters(), lr=0.1, momentum=0.9)", "LBFGS(model.parameters())")
    )
    assert "optimizer unknown" in result.output
    assert "the state of LBFGS: its step() fails in a dry run, which has no data, so its" in result.output


def test_what_depends_on_the_scripts_batch_is_marked_so() -> None:
    fields = {"workers": 2, "image": "none", "command": ["x"]}
    micro = {"sharding": "Parameters", "batch": {"microSamples": 4}}
    spec = TrainingJobSpec.model_validate({**fields, "strategy": micro})
    part = ModelPart(0, (Tensor((10,), 5, 4, True),), 1, 40)
    model = Model(10, "Adam", (0.1, 0.01), (0.1, 0.01), (part,))
    text = "\n".join(plan.plan_lines(spec, DryRunResult(model=model)))
    assert "10 parameters, Adam in 2 groups" in text
    assert "as in the script, in 2 parts, in micro-batches of at most 4" in text
    assert "not counted     all-gathers of sharded layers, and unsharded gradients, of each" in text


def test_one_rank_alone_sends_nothing() -> None:
    spec = TrainingJobSpec.model_validate({"workers": 1, "image": "none", "command": ["x"]})
    model = Model(1, "SGD", (0.1,), (0.1,), (ModelPart(0, (Tensor((1,), 1, 4, True),), 1, 0),))
    lines = list(plan.plan_lines(spec, DryRunResult(model=model)))
    assert "mesh            one rank alone" in lines
    assert "traffic         none: gradients are not sent" in lines


def test_figures_are_shown_in_fitting_units() -> None:
    assert [plan.byte_text(size) for size in (0, 999, 999_600, 1.5e12, 2e15)] == [
        "0 B", "999 B", "1 MB", "1.5 TB", "2e+03 TB"
    ]  # fmt: skip
