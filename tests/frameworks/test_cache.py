"""The cache of frameworks outlives the environment that filled it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.frameworks.conftest import environment, with_our_python


def test_a_cached_program_runs_when_the_python_that_installed_it_is_gone(tmp_path: Path) -> None:
    programs, copies = tmp_path / "bin", tmp_path / "copies"
    programs.mkdir()
    copies.mkdir()
    for name, text in (
        ("launch", "#!/gone/python3\nprint('trained')\n"),
        ("stop", "#!/bin/sh\necho stopped\n"),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    variables = os.environ | with_our_python(environment(tmp_path), programs, copies)
    done = subprocess.run(["sh", "-c", "launch; stop"], env=variables, capture_output=True, text=True)
    assert done.stdout == "trained\nstopped\n", done.stderr
