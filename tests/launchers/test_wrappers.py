"""Commands in front of a launcher: programs that start another one, and lines of a shell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ropeteam_trainer.contract.config import Launcher
from ropeteam_trainer.launchers import JobSize, Launch, Run, analyse
from ropeteam_trainer.launchers.shell import parse_simple_line


def understood(*argv: str) -> Launch:
    launch = analyse(argv, Launcher.AUTO, JobSize(2, 1))
    assert isinstance(launch, Launch), launch
    return launch


@pytest.mark.parametrize(
    ("line", "env", "wrapper"),
    [
        ("env A=b C= torchrun x.py", (("A", "b"), ("C", "")), ""),
        ("exec torchrun x.py", (), ""),
        ("nohup nice -n 10 time -p torchrun x.py", (), ""),
        ("nice --adjustment=5 torchrun x.py", (), ""),
        ("conda run -n ml --live-stream torchrun x.py", (), "conda run -n ml --live-stream"),
        ("uv run --with numpy -p3.12 -- torchrun x.py", (), "uv run --with numpy -p3.12 --"),
        ("uv run torchrun -- x.py", (), "uv run"),
        ("A=1 poetry run env B=2 torchrun x.py", None, ""),
        ("env A=1 poetry run env B=2 torchrun x.py", (("A", "1"), ("B", "2")), "poetry run"),
        ("env -u A torchrun x.py", None, ""),
        ("exec -a name torchrun x.py", None, ""),
        ("conda list", None, ""),
        ("uv run ./run.sh", None, ""),
        ("poetry run", None, ""),
    ],
)
def test_what_passes_on_is_looked_through(line, env, wrapper):
    launch = understood(*line.split())
    if env is None:
        assert launch.per_pod
        assert " ".join(launch.argv) == line
        assert launch.env == ()
        return
    assert (launch.run, launch.argv, launch.env) == (Run.SCRIPT, ("x.py",), env)
    assert " ".join(launch.wrapper) == wrapper
    assert launch.program == "torchrun"


@pytest.mark.parametrize("line", ["uv run x.py", "uv run -m pkg", "uv run --script x", "uv run - a"])
def test_a_script_of_uv_has_an_environment_of_its_own(line):
    launch = understood(*line.split())
    assert (launch.run, " ".join(launch.argv), launch.per_pod) == (Run.COMMAND, line, False)


@pytest.mark.parametrize(
    ("line", "argv", "env", "cwd"),
    [
        ("torchrun x.py", "torchrun|x.py", (), ""),
        (" torchrun  'a b' \"c'd\" e\\ f '' ;\n", "torchrun|a b|c'd|e f|", (), ""),
        ('torchrun "a \\"b\\" \\$c"', 'torchrun|a "b" $c', (), ""),
        ("torchrun \\\n  --role=a \\\n x.py", "torchrun|--role=a|x.py", (), ""),
        ("set -eux -o pipefail; cd /a && cd b && x", "x", (), "/a/b"),
        ("export A=b C='d e'; E=f G= x", "x", (("A", "b"), ("C", "d e"), ("E", "f"), ("G", "")), ""),
        ("exec torchrun x.py", "exec|torchrun|x.py", (), ""),
    ],
)
def test_a_simple_line_is_what_a_shell_makes_of_it(line, argv, env, cwd):
    found = parse_simple_line(line)
    assert found is not None
    assert ("|".join(found.words), found.env, found.cwd) == (argv, env, cwd)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "x $HOME",
            "x ${A:-b}",
            'x "$A"',
            "x `date`",
            "x *.py",
            "x a?",
            "x [ab]",
            "x ~/a",
            "x {a,b}",
            "x # why",
        ),
        *(
            "x | tee log",
            "x > log",
            "x 2>&1",
            "x < in",
            "x & y",
            "x || y",
            "(x)",
            "x && y",
            "x; y",
            "x\ny",
            "! x",
        ),
        *(
            "A=b; x",
            "export A; x",
            "cd; x",
            "cd - && x",
            "set -- a; x",
            "source a; x",
            "",
            " ",
            "A=b",
            "x 'a",
        ),
        *("x <<END\na\nEND", "x <<'END'\na\nEND\nb\nEND"),
    ],
)
def test_a_line_that_takes_a_shell_stays_one(line):
    assert parse_simple_line(line) is None
    launch = understood("bash", "-c", line)
    assert launch.per_pod
    assert launch.argv == ("bash", "-c", line)


SHOW = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ.get('A'), os.environ.get('B'))"


@pytest.mark.parametrize(
    "line",
    [
        "{python} -c '{show}' a 'b c' d\\ e \"f'g\" '' x=y --z",
        "set -e\ncd /usr && A='1 2' B=\"3\" exec {python} -c '{show}' \\\n  a",
        "export A=1 B=2; cd / && cd usr; {python} -c '{show}';",
    ],
)
def test_a_simple_line_runs_as_in_a_real_shell(line, tmp_path):
    line = line.format(python=sys.executable, show=SHOW.replace("'", '"'))
    launch = understood("/bin/bash", "-c", line)
    assert launch.run is Run.CODE
    argv = [sys.executable, "-c", *launch.argv]
    ours = subprocess.run(
        argv, cwd=tmp_path / launch.cwd, env=os.environ | dict(launch.env), capture_output=True, check=True
    )
    real = subprocess.run(["/bin/bash", "-c", line], cwd=tmp_path, capture_output=True, check=True)
    assert ours.stdout == real.stdout


def test_shells_are_known_by_their_options():
    login = ("/bin/bash", "-lc", 'exec "$0" "$@"')
    for argv, wrapper in (
        (("sh", "-c"), ()),
        (("/bin/bash", "-ec"), ()),
        (("bash", "-e", "-o", "pipefail", "-c"), ()),
        (("bash", "-euxo", "pipefail", "-c"), ()),
        (("/bin/bash", "-lc"), login),
        (("/bin/bash", "--login", "-c"), login),
    ):
        launch = understood(*argv, "A=b torchrun x.py", "name")
        assert (launch.argv, launch.env, launch.wrapper) == (("x.py",), (("A", "b"),), wrapper)
    for argv in (("bash", "-c"), ("bash", "torchrun x.py"), ("bash", "--norc", "-c", "torchrun x.py")):
        assert understood(*argv).argv == argv
    assert understood("uv", "run", "bash", "-c", "cd a && torchrun x.py").per_pod, "cd comes after uv"
    joined = understood("sh", "-c", "A=b accelerate launch x.py")
    assert (joined.argv, joined.joining_at, joined.env) == (
        ("accelerate", "launch", "x.py"),
        2,
        (("A", "b"),),
    )


def test_a_script_may_be_written_into_the_command():
    here = "set -e\nA=b python -u - --lr 1 <<'END'\nimport x\nprint($HOME)\nEND\n"
    launch = understood("bash", "-c", here)
    assert (launch.run, launch.argv) == (Run.STDIN, ("import x\nprint($HOME)\n", "--lr", "1"))
    assert (launch.flags, launch.env, launch.forkable) == (("-u",), (("A", "b"),), True)
    for other in ("python x.py <<'END'\nEND", "cat <<'END'\nEND", "torchrun x.py <<'END'\nEND"):
        assert understood("bash", "-c", other).argv == ("bash", "-c", other)
