"""Code that is no file: `python -c` and `python -` in our shim, beside the interpreter itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.agent.scripts import facts

from ropeteam_trainer.agent.processes.page import Page

FACTS = """
import json, pickle, sys
class Thing:
    pass
main = sys.modules["__main__"]
print("FACTS", json.dumps({
    "argv": sys.argv, "path": sys.path[0], "main": main.Thing is Thing, "file": vars().get("__file__"),
    "spec": __spec__, "loader": str(__loader__), "package": __package__, "module": main.__name__,
    "pickle": pickle.loads(pickle.dumps(Thing())).__module__, "cached": vars().get("__cached__", "none"),
}))
"""
POOL = """
import math, multiprocessing
for method in ("fork", "spawn"):
    with multiprocessing.get_context(method).Pool(1) as pool:
        print(method, pool.map(math.sqrt, [9.0]))
"""
FAULTS = (
    "def f():\n    1/0\n\nf()\n",
    "x = (\n1 +",
    "exec('1/0')",
    "import sys; sys.exit('why')",
    "raise SystemExit(3)",
    "import nothing_here",
)


def plainly(tmp_path, kind, text, *arguments):
    command = ["-c", text] if kind == "code" else ["-"]
    given = text if kind == "stdin" else ""
    return subprocess.run(
        [sys.executable, *command, *arguments],
        cwd=tmp_path,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["code", "stdin"])
def test_what_code_sees_is_what_python_shows_it(shim, tmp_path, kind):
    ours, plain = shim(kind, FACTS, "--lr", "0.1"), plainly(tmp_path, kind, FACTS, "--lr", "0.1")
    assert ours.returncode == 0, ours.stderr
    assert facts(ours.stdout) == facts(plain.stdout)


def test_code_starts_processes_as_under_python(shim, tmp_path):
    """Not so text of stdin: under python, too, spawn looks for a file of that name."""
    ours, plain = shim("code", POOL), plainly(tmp_path, "code", POOL)
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0), ours.stderr


@pytest.mark.parametrize("kind", ["code", "stdin"])
@pytest.mark.parametrize("text", FAULTS)
def test_code_fails_as_under_python(shim, tmp_path, kind, text):
    ours, plain = shim(kind, text), plainly(tmp_path, kind, text)
    assert (ours.stderr, ours.returncode) == (plain.stderr, plain.returncode)


@pytest.mark.parametrize("kind", ["code", "stdin"])
def test_isolated_code_does_not_find_modules_beside_it(shim, kind):
    assert shim(kind, "import sys; print(repr(sys.path[0]))").stdout == "''\n"
    assert shim(kind, "import sys; print(repr(sys.path[0]))", flags=("-I",)).stdout != "''\n"


def test_the_end_of_code_is_marked(shim, tmp_path):
    page = Page(tmp_path / "page")
    shim("code", "pass", ROPETEAM_RANK_PAGE=str(page.path))
    heartbeat = page.read()
    page.close()
    assert heartbeat is not None
    assert heartbeat.reached_end
