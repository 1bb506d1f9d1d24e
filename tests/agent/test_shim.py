"""A script cannot find out that it runs in our shim."""

from __future__ import annotations

import pytest
from tests.agent.scripts import facts, under_python, write_scripts

from ropeteam_trainer.agent.processes.page import Page


@pytest.mark.parametrize(
    ("kind", "target", "plainly"),
    [
        ("script", "x.py", ("x.py",)),
        ("script", "pkg/../x.py", ("pkg/../x.py",)),
        ("module", "pkg.train", ("-m", "pkg.train")),
        ("module", "pkg", ("-m", "pkg")),
    ],
)
def test_what_a_script_sees_is_what_python_shows_it(shim, tmp_path, kind, target, plainly):
    write_scripts(tmp_path)
    done = shim(kind, target, "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert facts(done.stdout) == under_python(tmp_path, *plainly, "--lr", "0.1")


def test_a_folder_with_a_main_runs_as_under_python(shim, tmp_path):
    write_scripts(tmp_path)
    ours, plain = facts(shim("script", "app").stdout), under_python(tmp_path, "app")
    assert ours.pop("argv") == [str(tmp_path / "app")], "absolute: the one difference"
    assert plain.pop("argv") == ["app"]
    assert ours == plain


def test_an_isolated_interpreter_stays_isolated(shim, tmp_path):
    (tmp_path / "x.py").write_text("import sys; print(sys.path[0], 'ropeteam_trainer' in sys.modules)")
    done = shim("script", "x.py", flags=("-I",))
    assert (done.returncode, done.stdout != "") == (0, True), done.stderr
    assert not done.stdout.startswith(str(tmp_path))


def test_our_package_comes_last_and_is_not_imported(shim, tmp_path):
    (tmp_path / "x.py").write_text("import sys; print(sys.path[-1], 'ropeteam_trainer' in sys.modules)")
    assert shim("script", "x.py").stdout.split() == [str(tmp_path / "state/lib"), "False"]
    installed = tmp_path / "ropeteam_trainer"
    installed.mkdir()
    (installed / "__init__.py").write_text("where = 'installed'")
    (tmp_path / "x.py").write_text("import ropeteam_trainer; print(ropeteam_trainer.where)")
    assert shim("script", "x.py").stdout == "installed\n"


@pytest.mark.parametrize(("place", "target"), [("site", "x.py"), (".", "x.py"), ("app", "app")])
@pytest.mark.parametrize(
    ("installed", "preserved"),
    [(None, False), ("wants_secret: bool", False), ("hello_pid: int", True), ("", True)],
)
def test_the_secret_of_servers_is_left_only_to_a_library_that_does_not_request_it(
    shim, tmp_path, installed, preserved, place, target
):
    """Nothing that the script starts has it, nor what keeps os.environ. `installed`: in the image, or beside
    the script."""
    site = tmp_path / place
    site.mkdir(exist_ok=True)
    if installed is not None:
        (site / "ropeteam_trainer" / "contract").mkdir(parents=True)
        (site / "ropeteam_trainer" / "__init__.py").write_text("")
        if installed:
            (site / "ropeteam_trainer" / "contract" / "local.py").write_text(installed)
    child = "import subprocess; print(subprocess.run(['env'], capture_output=True, text=True).stdout)"
    (tmp_path / "x.py").write_text(child)
    (tmp_path / "app").mkdir(exist_ok=True)
    (tmp_path / "app" / "__main__.py").write_text(child)
    plan = '{"epoch":"1.0.1","secret":"c0ffee","line":"1.0.1"}'
    flags = ("-S",)  # nothing is installed but what is there
    done = shim("script", target, flags=flags, ROPETEAM_RANK_PLAN=plan, PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    assert '"line"' in done.stdout
    assert ("c0ffee" in done.stdout) is preserved


@pytest.mark.parametrize(
    ("code", "status", "ended"),
    [
        ("pass", 0, True),
        ("import sys; sys.exit()", 0, True),
        ("import sys; sys.exit(0)", 0, True),
        ("import sys; sys.exit(3)", 3, False),
        ("import sys; sys.exit('why')", 1, False),
        ("raise KeyError(1)", 1, False),
        ("import os, atexit; atexit.register(os.abort)", -6, True),
        ("import atexit, sys; atexit.register(lambda: print(sys.last_value)); raise KeyError('x')", 1, False),
    ],
)
def test_the_end_of_a_script_is_marked_even_if_the_process_dies_later(shim, tmp_path, code, status, ended):
    (tmp_path / "x.py").write_text(code)
    page = Page(tmp_path / "page")
    done = shim("script", "x.py", ROPETEAM_RANK_PAGE=str(page.path))
    heartbeat = page.read()
    page.close()
    assert done.returncode == status
    assert (heartbeat is not None and heartbeat.reached_end) is ended


def test_a_module_that_is_not_there(shim):
    done = shim("module", "no.such.thing")
    assert done.returncode == 1
    assert "no.such.thing" in done.stderr
    assert "Traceback" not in done.stderr
    assert "No module named nothing" in shim("module", "nothing").stderr
