"""docs/first-tasks.md, all of it, in a terminal: the commands work, and show what the page says."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_commands import ROOT, blocks

PAGE = "docs/first-tasks.md"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def in_a_terminal(script: str, env: dict[str, str]) -> tuple[int, str]:
    """Exit status, and all that was shown."""
    ours, theirs = pty.openpty()
    try:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # EIO: nobody has the other end any more
            break
        if not part:
            break
        shown += part
    status = shell.wait()  # before the terminal is closed: that sends SIGHUP to processes that still have it
    os.close(ours)
    return status, _CONTROL.sub("", shown.decode(errors="replace"))


def test_each_of_the_twelve_first_tasks_works_as_written(tmp_path: Path) -> None:
    text = (ROOT / PAGE).read_text()
    tasks = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [task.partition(".")[0] for task in tasks] == [str(number) for number in range(1, 13)]
    assert all("```bash" in task for task in tasks)
    commands = "\n".join(blocks(PAGE)).replace("/tmp/", f"{tmp_path}/")
    commands = commands.replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
    own = {"HOME": str(tmp_path), "VENV": str(Path(sys.executable).parents[1]), "TERM": "xterm-256color"}
    env = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | own
    status, shown = in_a_terminal(commands, env | {"COLUMNS": "150", "LINES": "50"})
    assert status == 0, shown[-6000:]
    missed = [line for lines in blocks(PAGE, "text") for line in lines.splitlines() if line not in shown]
    assert missed == [], shown[-6000:]
