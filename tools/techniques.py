"""The plans in docs/techniques, as `ropeteam plan` prints them.

python -m tools.techniques            write them into the pages
python -m tools.techniques --check    say which pages are old; exit status 1 if any

A page has one manifest and may have one plan of it. Each takes a few seconds: the manifest's script is run up
to job.wrap(). Limit: what a plan counts may change with the version of torch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from ropeteam.api.job import TrainingJobSpec
from ropeteam.cli.plan import plan_of
from ropeteam.cli.rehearse import rehearse

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "techniques"
_MANIFEST = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLAN = re.compile(r"(?<=^`ropeteam plan` says:\n\n```text\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def manifests(page: str) -> list[dict[str, Any]]:
    return [yaml.safe_load(block) for block in _MANIFEST.findall(page)]


def has_plan(page: str) -> bool:
    return _PLAN.search(page) is not None


def planned(page: str) -> str:
    """The page with its plan as it is now. Raises BadInput for a manifest that cannot work."""
    if not has_plan(page):
        return page
    [manifest] = manifests(page)
    spec = TrainingJobSpec.model_validate(manifest["spec"])
    lines = "".join(f"{line}\n" for line in plan_of(spec, rehearse(spec, FOLDER, 300)))
    return _PLAN.sub(lambda _: lines, page)


def main(arguments: list[str]) -> int:
    old = 0
    for path in pages():
        text = path.read_text()
        new = planned(text)
        if new == text:
            continue
        old += 1
        print(f"{path.name} has an old plan", flush=True)
        if arguments != ["--check"]:
            path.write_text(new)
    return 1 if old and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
