"""Scripts that look at how they were started, and what they see under `python` itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FACTS = '''
"""Says how it was started."""
import argparse, json, multiprocessing, os, pickle, sys

class Thing:
    pass

def square(x):
    return x * x

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr")
    arguments, rest = parser.parse_known_args()
    main = sys.modules["__main__"]
    results = {}
    # spawn never finds a function of a __main__.py, under plain python neither
    for method in ["fork", "spawn"][: 1 if __file__.endswith("__main__.py") else 2]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            results[method] = pool.map(square, [3])
    spec = __spec__.name if __spec__ else None
    print("FACTS", json.dumps({
        "file": __file__, "argv": sys.argv, "path": sys.path[0], "package": __package__,
        "spec": spec,
        "lr": arguments.lr, "main": main.Thing is Thing,
        "pickle": pickle.loads(pickle.dumps(Thing())).__module__,
        "parser": parser.prog, "doc": __doc__, "pool": results, "cached": __cached__ is None,
    }), flush=True)
'''
RELATIVE = "from . import helper\nfrom .helper import word\n" + FACTS


def write_scripts(folder: Path) -> None:
    """x.py, the package `pkg` (module train, and __main__), and a folder that runs as one."""
    (folder / "x.py").write_text(FACTS)
    for name in ("pkg", "app"):
        (folder / name).mkdir()
    (folder / "pkg/__init__.py").write_text("")
    (folder / "pkg/helper.py").write_text("word = 'relative'\n")
    (folder / "pkg/train.py").write_text(RELATIVE)
    (folder / "pkg/__main__.py").write_text(RELATIVE)
    (folder / "app/__main__.py").write_text(FACTS)


def facts(text: str) -> dict[str, Any]:
    line = next(line for line in text.splitlines() if "FACTS" in line)
    found: dict[str, Any] = json.loads(line.partition("FACTS ")[2])
    return found


def under_python(folder: Path, *arguments: str) -> dict[str, Any]:
    """Output of the same command line without us."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return facts(done.stdout)
