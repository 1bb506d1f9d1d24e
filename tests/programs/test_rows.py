"""The campaign's table: every row here can be read, and what is wrong in one is named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.programs import rows
from tests.programs.__main__ import table
from tests.programs.rows import RowError, read

PROJECT: dict[str, Any] = {"repo": "a/b", "commit": "0" * 40}
ROW: dict[str, Any] = {"name": "one", "project": "p", "command": "python x.py", "shapes": ["1x1"]}


def reading(known: dict[str, Any] = PROJECT, **row: Any) -> list[rows.Row]:
    return read({"some.toml": {"project": {"p": known}, "row": [ROW | row]}})


def test_the_table_is_as_large_as_a_campaign_has_to_be():
    known = table()
    assert len(known) >= 60
    assert len({row.project.repo for row in known}) >= 25
    assert len({row.launcher for row in known}) >= 10
    assert sum(len(row.shapes) for row in known) >= 100


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"shapes": ["3x1"]}, "some.toml: row one: shapes: 3x1 is none of 1x1, 2x1, 1x2, 2x2"),
        ({"shapes": []}, "shapes: none is none of"),
        ({"name": "One"}, "name has to be lower case letters"),
        ({"command": ""}, "row one: command is missing"),
        ({"project": "q"}, "project q is in no file"),
        ({"second": 3}, "row one: unknown key second"),
        ({"reason": "SplitWorld", "refused": "torchrun"}, "refused and reason exclude each other"),
    ],
)
def test_a_wrong_row_is_named_with_its_key(row: dict[str, Any], message: str):
    with pytest.raises(RowError) as error:
        reading(**row)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("project", "message"),
    [
        ({"commit": "main"}, "commit has to be 40 hexadecimal digits"),
        ({"repo": "https://github.com/a/b"}, "repo has to be owner/name"),
        ({"package": []}, "project p: unknown key package"),
    ],
)
def test_a_wrong_project_is_named_with_its_key(project: dict[str, Any], message: str):
    with pytest.raises(RowError) as error:
        reading(PROJECT | project)
    assert message in str(error.value)


def test_a_name_is_there_once():
    with pytest.raises(RowError, match="row one is there twice"):
        read({"some.toml": {"project": {"p": PROJECT}, "row": [ROW, ROW]}})
    with pytest.raises(RowError, match=r"b.toml: project p is in two files"):
        read({"a.toml": {"project": {"p": PROJECT}}, "b.toml": {"project": {"p": PROJECT}}})


def test_a_command_has_the_shape_in_it():
    (row,) = reading(command="torchrun --nnodes {workers} --nproc-per-node={processes} 'a b.py' {world}")
    assert row.argv("2x2") == ["torchrun", "--nnodes", "2", "--nproc-per-node=2", "a b.py", "4"]
    assert (row.expected("2x1"), row.expected("2x2")) == (2, 4)
    (row,) = reading(world=2)
    assert row.expected("1x1") == 2


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("python -u x.py -m", "python"),
        ("python -m pkg.train", "python -m"),
        ("python -m torch.distributed.run x.py", "python -m torch.distributed.run"),
        ("python -c 'pass'", "python -c"),
        ("/opt/bin/torchrun x.py", "torchrun"),
        ("accelerate-launch x.py", "accelerate launch"),
        ("bash -ec 'torchrun x.py'", "bash -c"),
        ("bash run.sh -c", "bash -c"),
        ("bash run.sh", "bash script"),
        ("mpiexec -n 2 x", "mpirun"),
        ("colossalai run x.py", "colossalai run"),
        ("other x.py", "other"),
    ],
)
def test_a_launcher_has_one_name(command: str, launcher: str):
    (row,) = reading(command=command)
    assert row.launcher == launcher
