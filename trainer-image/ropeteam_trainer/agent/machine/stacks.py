"""Where a rank stands, read from what faulthandler has written of its threads. Pure.

Limits: it is text among all else that a rank prints, and a script can write the same; it moves the blame
between ranks that stand still, no more. Libraries are known by the names of their folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ropeteam_trainer.contract.messages import Standstill

_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
"""Perhaps after a progress bar, which ends no line."""
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)$')
_LIBRARY = re.compile(r"^<(?!string>|stdin>)|/lib(64)?/python3|/(site|dist)-packages/|/python3\d+\.zip/")
_OURS = "/ropeteam_trainer/"
_SHIM = "/ropeteam_trainer/agent/script/rankmain.py"
_WAITS = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/autograd/")
_LONGEST = 200


def stands(lines: Iterable[str]) -> Standstill | None:
    """By the main thread: that which the signal came to, or the last of the list. None: there is no stack."""
    threads: list[tuple[str, list[tuple[str, ...]]]] = []
    for line in lines:
        if head := _THREAD.search(line):
            threads.append((head[1], []))
        elif threads and (found := _FRAME.match(line)):
            threads[-1][1].append(found.groups())
    main = next((frames for title, frames in threads if title == "Current thread"), None)
    frames = main or (threads[-1][1] if threads else [])
    return _of(frames) if frames else None


def _of(frames: list[tuple[str, ...]]) -> Standstill:
    """Innermost first, as they were written. The frames around the script are not its own."""
    shim = (number for number, (file, *_) in enumerate(frames) if file.endswith(_SHIM))
    inside = frames[: next(shim, len(frames))]
    own = [n for n, (file, *_) in enumerate(inside) if not (_LIBRARY.search(file) or _OURS in file)]
    file, line, function = frames[own[0] if own else 0]
    text = f"{file.rpartition('/')[2]}:{line} ({function})"[:_LONGEST]
    gone_into = inside[: own[0]] if own else inside
    waits = any(part in file for file, *_ in gone_into for part in _WAITS)
    return Standstill("".join(each if each.isprintable() else "?" for each in text), waits)
