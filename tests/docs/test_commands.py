"""Every command block of the guides, run word by word, in order, in one shell with an empty HOME."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = [f"docs/guides/{page.name}" for page in sorted((ROOT / "docs" / "guides").glob("*.md"))]
PYTHON = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "\n```python\n" in page.read_text()]
PAGES = ["README.md", "docs/getting-started.md", *GUIDES]


def blocks(page: str, kind: str = "bash") -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(1800)
def test_getting_started_works_as_written(tmp_path: Path):
    found = blocks("docs/getting-started.md")
    assert len(found) >= 6
    kubectl = os.environ.get("KUBECTL")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    if kubectl:  # a person has it on PATH under its own name
        (tmp_path / "kubectl").symlink_to(kubectl)
        path = f"{tmp_path}:{path}"
    # The page's own names for the environment and for temporary files may not be those of this test.
    commands = "\n".join(found).replace("/tmp/", f"{tmp_path}/")
    commands = commands.replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
    script = f"set -euxo pipefail\ntrap 'kill %1 2>/dev/null && wait %1' EXIT\n{commands}"
    own = {"HOME": str(tmp_path), "PATH": path, "VENV": str(Path(sys.executable).parents[1])}
    env = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | own
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=1700)
        assert shell.returncode == 0, output[-6000:]
    except subprocess.TimeoutExpired as error:
        os.killpg(shell.pid, signal.SIGTERM)  # the cluster too
        raise AssertionError(shell.communicate()[0][-6000:]) from error


@pytest.mark.parametrize("page", [page for page in GUIDES if blocks(page)])
def test_commands_of_a_guide_work(page: str, tmp_path: Path):
    commands = "\n".join(blocks(page)).replace("/tmp/", f"{tmp_path}/")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(tmp_path), "PATH": path}
    snippets = "\n".join(blocks(page, "python")).replace("/tmp/", f"{tmp_path}/")
    script = f"set -euxo pipefail\n{commands}\npython - <<'END'\n{snippets}\nEND"
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.stem)
def test_a_snippet_imports_what_it_uses(page: Path):
    for snippet in blocks(str(page.relative_to(ROOT)), "python"):
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "-"]
        done = subprocess.run(command, input=snippet, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_script_of_getting_started_trains(tmp_path: Path):
    (tmp_path / "train.py").write_text(blocks("docs/getting-started.md", "python")[0])
    command = ["run", "--home", str(tmp_path / "home"), "-n", "2", "--", sys.executable, "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "ropeteam.cli", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "steps: 100" in done.stdout


def test_a_manifest_that_brings_its_code_trains_with_it(tmp_path: Path):
    (tmp_path / "job.yaml").write_text(blocks("docs/guides/code.md", "yaml")[0])
    home = ["--home", str(tmp_path / "home")]
    command = [
        sys.executable,
        "-m",
        "ropeteam.cli",
        "run",
        *home,
        "--logs",
        "all",
        str(tmp_path / "job.yaml"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[rank 0] rank 0 of 2", "[rank 1] rank 1 of 2"} <= set(done.stdout.splitlines())


def test_readme_has_no_command_that_nobody_runs():
    [block] = blocks("README.md")
    targets = [line.removeprefix("make ") for line in block.splitlines()]
    assert targets == ["demo", "test"]
    stages = re.findall(r"^stage ([a-z-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert set(targets) <= set(stages)
    assert set(re.findall(r"`make (\w+)`", (ROOT / "README.md").read_text())) <= {*targets, "help"}


@pytest.mark.parametrize(
    "page",
    [
        *PAGES,
        "docs/api.md",
        "docs/architecture.md",
        "docs/frameworks.md",
        "docs/install.md",
        "docs/metrics.md",
        "docs/peers.md",
        "docs/recovery.md",
        "docs/security.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ],
)
def test_links_between_documents_lead_somewhere(page: str):
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert [t for t in targets if "://" not in t and not (ROOT / page).parent.joinpath(t).exists()] == []


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("**/*.yaml")), ids=lambda path: path.name)
def test_every_example_is_valid(example: Path):
    command = [sys.executable, "-m", "ropeteam.cli", "validate", str(example)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_yaml_in_the_documents_is_valid():
    import yaml

    from ropeteam.api.rules.validate import validate

    seen = 0
    for page in (*PAGES, "docs/api.md"):
        for each in (each for block in blocks(page, "yaml") for each in yaml.safe_load_all(block)):
            if each.get("kind", "TrainingJob") == "TrainingJob":
                assert validate(each["spec"]) == (), page
                seen += 1
    assert seen >= 6
