"""Commands, as the operator and `ropeteam validate` read them."""

from __future__ import annotations

import pytest

from ropeteam.api import commands
from ropeteam.api.job import TrainingJobSpec

TORCHRUN = ["torchrun", "--nproc-per-node", "2", "x.py"]


def spec(**fields) -> TrainingJobSpec:
    return TrainingJobSpec.model_validate(
        {"workers": 2, "image": "i", "command": ["python", "x.py"]} | fields
    )


@pytest.mark.parametrize(
    ("fields", "processes"),
    [
        ({}, 1),
        ({"gpusPerWorker": 4}, 4),
        ({"command": TORCHRUN}, 2),
        ({"command": TORCHRUN, "gpusPerWorker": 4}, 4),
        ({"command": TORCHRUN, "processesPerWorker": 1}, 1),
        ({"command": TORCHRUN, "launcher": "PerPod"}, 1),
        ({"command": ["torchrun"], "args": ["--nproc-per-node=3", "x.py"]}, 3),
        ({"command": ["bash", "-c", "torchrun --nproc-per-node=3 x.py"]}, 3),
        ({"command": ["torchrun", "--nproc-per-node", "129", "x.py"]}, 1),
        ({"command": ["torchrun", "--nproc-per-node", "100", "x.py"], "workers": 100}, 1),
        ({"command": ["torchrun", "--nproc-per-node", "0", "x.py"]}, 1),
        ({"command": ["torchrun", "--nproc-per-node", "$(COUNT)", "x.py"]}, 1),
        (
            {
                "command": None,
                "template": {"spec": {"containers": [{"name": "trainer", "command": TORCHRUN}]}},
            },
            2,
        ),
        ({"command": None}, 1),
    ],
)
def test_ranks_per_worker_are_those_of_the_fields_or_else_of_the_command(fields, processes):
    assert spec(**fields).processes == processes


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"command": TORCHRUN}, ""),
        ({"command": None}, ""),
        ({"command": ["torchrun", "--nnodes", "$(COUNT)", "x.py"]}, ""),
        (
            {"command": ["torchrun", "--nnodes", "4", "x.py"]},
            "--nnodes 4, but the job has 2 workers; set spec.workers to 4",
        ),
        ({"command": TORCHRUN, "gpusPerWorker": 4}, "the job has 4 (spec.gpusPerWorker); set that to 2"),
        ({"command": TORCHRUN, "processesPerWorker": 4}, "has 4 (spec.processesPerWorker); set that to 2"),
        (
            {"command": ["torchrun", "--nproc-per-node", "129", "x.py"]},
            "(spec.processesPerWorker); set that to 129",
        ),
    ],
)
def test_a_command_that_the_agent_would_refuse_is_refused_before(fields, expected):
    message = commands.problem(spec(**fields))
    assert expected in message
    assert bool(expected) == bool(message)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"command": ["./run.sh"]}, "set spec.launcher to PerRank"),
        ({"command": ["./run.sh"], "launcher": "PerPod"}, ""),
        ({"command": ["./run.sh"], "workers": 1}, ""),
        ({"command": ["accelerate", "launch", "x.py"]}, ""),
        ({"command": ["accelerate", "launch", "x.py"], "gpusPerWorker": 2}, ""),
        (
            {"command": ["accelerate", "launch", "x.py"], "processesPerWorker": 2},
            "where it sees no GPU; for 2",
        ),
        ({"command": ["mpirun", "x.py"]}, ""),
        ({"command": None}, ""),
    ],
)
def test_what_may_not_be_meant_is_noted(fields, expected):
    message = " ".join(commands.notes(spec(**fields)))
    assert expected in message
    assert bool(expected) == bool(message)
