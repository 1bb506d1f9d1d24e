"""Meaning of commands, as a table."""

from __future__ import annotations

import pytest

from ropeteam_trainer.contract.config import Launcher
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason
from ropeteam_trainer.launchers import JobSize, Launch, Rendezvous, Run, analyse, requested_processes

ONE = JobSize(workers=1, processes=1)
TWO = JobSize(workers=2, processes=1)
PLACE = Rendezvous(1, "10.0.0.1", 29500)


def understood(line: str, job: JobSize = ONE, launcher: Launcher = Launcher.AUTO) -> Launch:
    launch = analyse(tuple(line.split()), launcher, job)
    assert isinstance(launch, Launch), launch
    return launch


def refused(line: str, job: JobSize = ONE) -> str:
    problem = analyse(tuple(line.split()), Launcher.AUTO, job)
    assert isinstance(problem, Problem), problem
    assert problem.reason is FailReason.LAUNCHER_REFUSED
    return problem.message


@pytest.mark.parametrize(
    ("line", "run", "argv", "python", "flags"),
    [
        ("python x.py --lr 1", Run.SCRIPT, "x.py --lr 1", "python", ""),
        ("/opt/bin/python3.12 -u x.py", Run.SCRIPT, "x.py", "/opt/bin/python3.12", "-u"),
        ("python3 -X dev -W ignore -OO x.py -m", Run.SCRIPT, "x.py -m", "python3", "-X dev -W ignore -OO"),
        ("python -Xdev -uBmpkg.train", Run.MODULE, "pkg.train", "python", "-X dev -uB"),
        (
            "python --check-hash-based-pycs never -- x.py",
            Run.SCRIPT,
            "x.py",
            "python",
            "--check-hash-based-pycs never --",
        ),
        ("python -m pkg.train -c 3", Run.MODULE, "pkg.train -c 3", "python", ""),
        ("python -u -c pass -m", Run.CODE, "pass -m", "python", "-u"),
        ("python -m torchrun x.py", Run.MODULE, "torchrun x.py", "python", ""),
        ("python", Run.COMMAND, "python", "python", ""),
        ("python - a", Run.COMMAND, "python - a", "python", ""),
        ("python -m", Run.COMMAND, "python -m", "python", ""),
        ("python -W", Run.COMMAND, "python -W", "python", ""),
        ("torchrun x.py", Run.SCRIPT, "x.py", None, ""),
        ("torchrun --nproc-per-node=gpu --nnodes 1 x.py -m", Run.SCRIPT, "x.py -m", None, ""),
        ("torchrun --nproc_per_node 1 --standalone -m pkg.train a", Run.MODULE, "pkg.train a", None, ""),
        ("torchrun -mr 3 pkg.train", Run.MODULE, "pkg.train", None, ""),
        ("torchrun --max-restarts=3 -t 3 -r1 --run-path x", Run.RUN_PATH, "x", None, ""),
        ("torchrun --run-path --no-python x", Run.RUN_PATH, "x", None, ""),
        ("torchrun --rdzv-backend c10d --rdzv-end a:1 -- x.py --y", Run.SCRIPT, "x.py --y", None, ""),
        ("torchrun --no-python bash -c true", Run.COMMAND, "bash -c true", None, ""),
        ("python -u -m torch.distributed.run --role=a x.py", Run.SCRIPT, "x.py", "python", "-u"),
        ("python /opt/bin/torchrun --role a x.py", Run.SCRIPT, "x.py", "python", ""),
        ("python -m torch.distributed.launch --use_env x.py", Run.SCRIPT, "x.py", "python", ""),
        ("deepspeed --num_nodes 1 -H hosts x.py --deepspeed", Run.SCRIPT, "x.py --deepspeed", None, ""),
        ("deepspeed --module --no_ssh --node_rank=1 pkg.train a", Run.MODULE, "pkg.train a", None, ""),
        ("python -m deepspeed.launcher.runner --save_pid x.py", Run.SCRIPT, "x.py", "python", ""),
    ],
)
def test_commands_that_start_once_per_rank(line, run, argv, python, flags):
    launch = understood(line)
    assert (launch.run, " ".join(launch.argv), launch.python) == (run, argv, python)
    assert " ".join(launch.flags) == flags
    assert not launch.per_pod
    assert launch.program == line.split()[0]
    assert launch.text.startswith("PerRank")
    assert launch.forkable == (run is not Run.COMMAND)


def test_arguments_after_the_script_are_its_own_whatever_flag_they_could_be():
    """--logs could be --logs-specs, in two spellings."""
    assert understood("torchrun --nproc-per-node 1 -m pkg.train --logs a --no").argv == (
        "pkg.train", "--logs", "a", "--no",
    )  # fmt: skip


def test_flags_of_deepspeed_that_change_no_rank_are_taken():
    flags = (
        "--bind_cores_to_rank --bind_core_list 0-3 --venv_script a.sh --enable_each_rank_log logs --save_pid"
        " -q --ssh_port 22 --force_multi --launcher pdsh --include localhost:3 --num_gpus -1 --num_nodes -1"
    )
    assert understood(f"deepspeed {flags} x.py").argv == ("x.py",)


def test_everything_else_starts_once_per_pod():
    for line in (
        "./run.sh --fast",
        "accelerate config",
        "sh ./run.sh",
        "env",
        "env -i python x.py",
        "tune ls",
    ):
        launch = understood(line)
        assert launch.per_pod
        assert " ".join(launch.argv) == line
        assert launch.pod_argv(PLACE) == launch.argv
    assert understood("./run.sh").text == "PerPod (run.sh)"


def test_a_script_gets_its_local_rank_as_from_its_launcher():
    def third(line: str) -> str:
        return " ".join(understood(line).rank_argv(3))

    assert third("deepspeed x.py --lr 1") == "x.py --local_rank=3 --lr 1"
    assert third("deepspeed --no_python ./run") == "./run --local_rank=3"
    assert third("deepspeed --no_local_rank x.py") == "x.py"
    assert third("torchrun x.py --lr 1") == "x.py --lr 1"
    assert third("python -m torch.distributed.launch x.py a") == "x.py --local-rank=3 a"
    assert third("python -m torch.distributed.launch --use-env x.py a") == "x.py a"


def test_the_launcher_field_decides():
    per_pod = Launch(
        Run.COMMAND, ("python", "x.py"), per_pod=True, program="python", text="PerPod (as specified)"
    )
    assert understood("python x.py", launcher=Launcher.PER_POD) == per_pod
    for line in ("sh -c ./run.sh", "accelerate launch --num_processes 1 x.py", "srun python x.py"):
        launch = understood(line, TWO, Launcher.PER_RANK)
        assert not launch.per_pod
        assert " ".join(launch.argv) == line
    assert understood("python x.py", launcher=Launcher.PER_RANK).run is Run.SCRIPT
    assert understood("srun python x.py", launcher=Launcher.PER_POD).per_pod


@pytest.mark.parametrize(
    ("line", "job", "expected"),
    [
        ("torchrun --frobnicate x.py", ONE, "torchrun flag --frobnicate is unknown (torch 2."),
        ("torchrun --nnodes", ONE, "--nnodes: expected one argument"),
        ("torchrun --rdzv x.py", ONE, "torchrun flag --rdzv is unknown"),
        ("torchrun --standalone", ONE, "required: script"),
        ("torchrun --help", ONE, "-h/--help shows help and trains nothing"),
        ("torchrun --standalone x.py", TWO, "a separate world, but the job has 2 workers; leave it out"),
        ("torchrun --nnodes=1 x.py", TWO, "--nnodes 1, but the job has 2 workers; set spec.workers to 1, or"),
        (
            "torchrun --nnodes=3:4 x.py",
            TWO,
            "--nnodes 3:4, but the job has 2 workers; set spec.workers to 4, or",
        ),
        ("torchrun --nnodes=1:many x.py", TWO, "--nnodes 1:many is not a number"),
        ("torchrun --nproc-per-node many x.py", ONE, "--nproc-per-node many is not a number"),
        (
            "torchrun --nproc-per-node 4 x.py",
            JobSize(1, 2),
            "the job has 2 (spec.processesPerWorker, or else spec.gpusPerWorker); set that to 4",
        ),
        ("torchrun -m --no-python x", ONE, "--module and --no-python exclude each other"),
        ("python -m torch.distributed.launch --no-python x", ONE, "--no-python needs --use-env"),
        ("deepspeed --num_gpus 4 x.py", JobSize(1, 2), "--num-gpus 4 requests 4 processes"),
        ("deepspeed --num_accelerators 1 x.py", JobSize(1, 2), "--num-gpus 1 requests 1 process per worker"),
        ("deepspeed --num_nodes 3 x.py", TWO, "--num-nodes 3, but the job has 2 workers"),
        ("deepspeed --include worker-1:0 x.py", TWO, "--include names other ranks"),
        ("deepspeed --include localhost:0,1 x.py", ONE, "--include names other ranks"),
        ("deepspeed -e localhost:0 x.py", ONE, "--exclude is not supported; set spec.gpusPerWorker"),
        ("deepspeed --autotuning run x.py", ONE, "--autotuning starts many training runs"),
        ("deepspeed --module --no_python x", ONE, "--module and --no_python exclude each other"),
        ("mpirun -n 2 python x.py", TWO, "mpirun starts processes in other pods"),
        ("env A=1 srun python x.py", TWO, "srun starts processes in other pods"),
        ("tune run --nnodes 1:4 full --config c", TWO, "--nnodes 1:4 is a range; write 2"),
        ("torchrun --virtual-local-rank x.py", JobSize(1, 2), "--virtual-local-rank is not supported"),
    ],
)
def test_what_contradicts_the_job_is_refused_by_name(line, job, expected):
    assert expected in refused(line, job)


def test_a_range_of_nodes_may_hold_the_workers():
    assert understood("torchrun --nnodes=1:4 x.py", TWO).argv == ("x.py",)
    assert understood("torchrun --nnodes 2 --node-rank 7 --master-addr a x.py", TWO).argv == ("x.py",)


# ---- launchers that run themselves


@pytest.mark.parametrize(
    ("line", "job", "expected"),
    [
        (
            "accelerate launch x.py a",
            JobSize(2, 8),
            "accelerate launch --num_machines 2 --num_processes 16 --machine_rank 1"
            " --main_process_ip 10.0.0.1 --main_process_port 29500 x.py a",
        ),
        (
            "accelerate-launch --cpu x.py",
            TWO,
            "accelerate-launch --num_machines 2 --num_processes 2 --machine_rank 1"
            " --main_process_ip 10.0.0.1 --main_process_port 29500 --cpu x.py",
        ),
        (
            "uv run -q python -m accelerate.commands.launch --use_deepspeed --num-machines 2 x.py",
            TWO,
            "uv run -q python -m accelerate.commands.launch --num_machines 2 --num_processes 2"
            " --machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 29500"
            " --deepspeed_multinode_launcher standard --use_deepspeed --num-machines 2 x.py",
        ),
        (
            "fabric run --accelerator cpu x.py --devices 2 --lr 1",
            JobSize(2, 2),
            "fabric run --devices 2 --num-nodes 2 --node-rank 1 --main-address 10.0.0.1 --main-port 29500"
            " --accelerator cpu x.py --devices 2 --lr 1",
        ),
        (
            "composer -n 2 x.py",
            JobSize(1, 2),
            "composer --nproc 2 --world_size 2 --node_rank 1 --master_addr 10.0.0.1 --master_port 29500"
            " -n 2 x.py",
        ),
        (
            "tune run full_finetune_distributed --config c",
            TWO,
            "tune run --nnodes 2 --nproc-per-node 1 --node-rank 1 --rdzv-backend static"
            " --rdzv-endpoint 10.0.0.1:29500 full_finetune_distributed --config c",
        ),
        (
            "tune run lora_finetune_single_device --config c",
            TWO,
            "tune run lora_finetune_single_device --config c",
        ),
        (
            "accelerate launch --machine_rank 0 --config_file f x.py",
            ONE,
            "accelerate launch --machine_rank 0 --config_file f x.py",
        ),
    ],
)
def test_launchers_of_a_pod_join_one_world(line, job, expected):
    launch = understood(line, job)
    assert launch.per_pod
    assert launch.run is Run.COMMAND
    assert " ".join(launch.pod_argv(PLACE)) == expected
    assert launch.text.startswith("PerPod (")
    assert launch.text.endswith(", flags added)") == (expected != line)


def test_launchers_of_a_pod_that_is_a_world_of_its_own_join_no_other():
    alone = understood("composer x.py", JobSize(2, 1, worlds_per_pod=True))
    assert alone.pod_argv(PLACE) == ("composer", "x.py")
    pair = understood("composer x.py", JobSize(2, 2, worlds_per_pod=True))
    expected = "--nproc 2 --world_size 2 --node_rank 0 --master_addr 10.0.0.2 --master_port 20001"
    assert pair.pod_argv(Rendezvous(0, "10.0.0.2", 20001)) == ("composer", *expected.split(), "x.py")


@pytest.mark.parametrize(
    ("line", "job", "expected"),
    [
        (
            "accelerate launch --num_processes 3 x.py",
            TWO,
            "--num-processes 3 counts all ranks, and is not a multiple",
        ),
        ("accelerate launch --num_processes 8 x.py", TWO, "requests 4 processes per worker, the job has 1"),
        ("accelerate launch --num_machines 4 x.py", TWO, "--num-machines 4, but the job has 2 workers"),
        (
            "accelerate launch --machine_rank 0 x.py",
            TWO,
            "--machine-rank is set in each pod by Ropeteam; leave it out",
        ),
        (
            "accelerate launch --cpu x.py",
            JobSize(1, 2),
            "--cpu starts one process per pod, the job has 2 per worker",
        ),
        (
            "accelerate launch --mpirun_hostfile f x.py",
            TWO,
            "--mpirun-hostfile starts processes in other pods",
        ),
        ("accelerate launch --deepspeed_multinode_launcher pdsh x.py", TWO, "set it to standard"),
        ("fabric run --devices 0,1 x.py", TWO, "--devices 0,1 requests 2 processes"),
        ("fabric run --devices 3 x.py", TWO, "--devices 3 requests 3 processes"),
        ("fabric run x.py --main-port 1", TWO, "--main-port is set in each pod by Ropeteam"),
        ("composer --world_size 4 x.py", TWO, "--world_size 4, but the job has 2 ranks"),
        ("tune run --nnodes 3 full --config c", TWO, "--nnodes 3, but the job has 2 workers"),
        ("tune run --rdzv-endpoint a:1 full --config c", TWO, "--rdzv-endpoint is set in each pod"),
    ],
)
def test_flags_of_a_launcher_of_a_pod_agree_with_the_job(line, job, expected):
    assert expected in refused(line, job)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("torchrun --nproc-per-node 2 x.py", 2),
        ("env A=1 python -m torch.distributed.run --nproc_per_node=8 x.py", 8),
        ("torchrun --nproc-per-node gpu x.py", None),
        ("torchrun --nproc-per-node many x.py", None),
        ("torchrun x.py", None),
        ("torchrun --frobnicate x.py", None),
        ("deepspeed --num_gpus 4 x.py", 4),
        ("accelerate launch --num_processes 8 x.py", 4),
        ("accelerate launch x.py", None),
        ("fabric run --devices auto x.py", None),
        ("fabric run x.py --devices 0,", 1),
        ("composer -n 2 x.py", 2),
        ("python x.py --nproc-per-node 2", None),
        ("./run.sh", None),
        ("", None),
    ],
)
def test_a_command_may_set_the_number_of_ranks_per_worker(line, count):
    command = tuple(line.split())
    assert requested_processes(command, Launcher.AUTO, 2) == count
    assert requested_processes(command, Launcher.PER_POD, 2) is None
    if count and "accelerate" in line:
        assert requested_processes(command, Launcher.PER_RANK, 2) is None


def test_a_newer_runners_flag_leaves_the_command_as_it_is():
    launch = understood("uv run --frobnicate python x.py", TWO)
    assert (launch.run, launch.per_pod, launch.text) == (Run.COMMAND, True, "PerPod (uv)")


def test_a_path_is_seen_from_where_the_command_starts():
    launch = analyse(("bash", "-c", "cd /work && .venv/bin/python x.py"), Launcher.AUTO, ONE)
    assert isinstance(launch, Launch)
    assert (launch.python, launch.program) == ("/work/.venv/bin/python", "/work/.venv/bin/python")
    assert understood("python x.py", ONE).python == "python"
