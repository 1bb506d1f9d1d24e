"""What a command means, as a table."""

from __future__ import annotations

import pytest

from ropeteam_trainer.agent.launch import Launch, Run, analyse
from ropeteam_trainer.contract.config import Launcher
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason


def understood(line: str, launcher: Launcher = Launcher.AUTO, processes: int = 1) -> Launch:
    launch = analyse(tuple(line.split()), launcher, processes)
    assert isinstance(launch, Launch), launch
    return launch


def refused(line: str, processes: int = 1) -> str:
    problem = analyse(tuple(line.split()), Launcher.AUTO, processes)
    assert isinstance(problem, Problem), problem
    assert problem.reason is FailReason.LAUNCHER_REFUSED
    return problem.message


@pytest.mark.parametrize(
    ("line", "run", "argv", "python", "flags"),
    [
        ("python x.py --lr 1", Run.SCRIPT, "x.py --lr 1", "python", ""),
        ("/opt/bin/python3.12 -u x.py", Run.SCRIPT, "x.py", "/opt/bin/python3.12", "-u"),
        ("python3 -X dev -W ignore -OO x.py -m", Run.SCRIPT, "x.py -m", "python3", "-X dev -W ignore -OO"),
        ("python -m pkg.train -c 3", Run.MODULE, "pkg.train -c 3", "python", ""),
        ("python -c pass", Run.COMMAND, "python -c pass", "python", ""),
        ("python", Run.COMMAND, "python", "python", ""),
        ("python -m", Run.COMMAND, "python -m", "python", ""),
        ("python -W", Run.COMMAND, "python -W", "python", ""),
        ("torchrun x.py", Run.SCRIPT, "x.py", None, ""),
        ("torchrun --nproc-per-node=gpu --nnodes 2 x.py -m", Run.SCRIPT, "x.py -m", None, ""),
        ("torchrun --nproc_per_node 1 --standalone -m pkg.train a", Run.MODULE, "pkg.train a", None, ""),
        ("torchrun --max-restarts=3 -t 3 -r 1 --run-path x", Run.RUN_PATH, "x", None, ""),
        ("torchrun --rdzv-backend c10d -- x.py --y", Run.SCRIPT, "x.py --y", None, ""),
        ("torchrun --no-python bash -c true", Run.COMMAND, "bash -c true", None, ""),
        ("python -u -m torch.distributed.run --role=a x.py", Run.SCRIPT, "x.py", "python", "-u"),
        ("deepspeed --num_nodes 2 -H hosts x.py --deepspeed", Run.SCRIPT, "x.py --deepspeed", None, ""),
        ("deepspeed --module --no_ssh --node_rank=1 pkg.train a", Run.MODULE, "pkg.train a", None, ""),
    ],
)
def test_commands_that_start_once_per_rank(line, run, argv, python, flags):
    launch = understood(line)
    assert (launch.run, " ".join(launch.argv), launch.python) == (run, argv, python)
    assert " ".join(launch.flags) == flags
    assert not launch.per_pod
    assert launch.text.startswith("PerRank")
    assert launch.forkable == (run is not Run.COMMAND)


def test_everything_else_starts_once_per_pod():
    for line in ("accelerate launch x.py", "sh -c ./run.sh", "env A=1 python x.py"):
        launch = understood(line)
        assert launch.per_pod
        assert " ".join(launch.argv) == line
    assert understood("accelerate launch x.py").text == "PerPod (accelerate)"


def test_deepspeed_tells_a_script_its_local_rank():
    assert understood("deepspeed x.py --lr 1").arguments(3) == ("x.py", "--local_rank=3", "--lr", "1")
    assert understood("deepspeed --no_python ./run").arguments(0) == ("./run", "--local_rank=0")
    assert understood("deepspeed --no_local_rank x.py").arguments(3) == ("x.py",)
    assert understood("torchrun x.py --lr 1").arguments(3) == ("x.py", "--lr", "1")


def test_the_launcher_field_decides():
    assert understood("python x.py", Launcher.PER_POD) == Launch(
        Run.COMMAND, ("python", "x.py"), per_pod=True, text="PerPod (as asked)"
    )
    assert not understood("sh -c ./run.sh", Launcher.PER_RANK).per_pod
    assert understood("python x.py", Launcher.PER_RANK).run is Run.SCRIPT


def test_torchrun_flags_that_cannot_be_honoured_are_refused_by_name():
    assert "--frobnicate is not known" in refused("torchrun --frobnicate x.py")
    assert "--nnodes needs a value" in refused("torchrun --nnodes")
    assert "no script" in refused("torchrun --standalone")
    assert "deepspeed flag --include is not known" in refused("deepspeed --include localhost:0 x.py")
    for flag in ("--num_gpus", "--num_accelerators"):
        assert "--num-gpus 4, the job has 2" in refused(f"deepspeed {flag} 4 x.py", processes=2)
    message = refused("torchrun --nproc-per-node=4 x.py", processes=2)
    assert "--nproc-per-node 4" in message
    assert "2 processes" in message
    assert "spec.processesPerWorker" in message
