"""Files that a tool makes: written, or with --check compared. Shared by the tools of `make crds` and
`make chart`."""

from __future__ import annotations

from pathlib import Path


def main(files: dict[Path, str], tool: str, arguments: list[str]) -> int:
    """Exit status: 1 if --check found a file that is not what `tool` makes."""
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path.name} is not what {tool} makes: run `make crds chart`")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])
    return 0
