"""The frame in which a rank hangs, parsed from the stacks that faulthandler has printed. Pure.

Limits: the stacks are text among all else that a rank prints, and a script can print the same; that can only
move the blame between ranks that hang. Libraries are recognized by the names of their folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ropeteam_trainer.contract.messages import Hang

_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
"""Head of one thread's stack. May follow a progress bar on the same line, which ends no line."""
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)$')
_LIBRARY = re.compile(r"^<(?!string>|stdin>)|/lib(64)?/python3|/(site|dist)-packages/|/python3\d+\.zip/")
"""File names that are not the user's: frozen modules, the standard library, installed packages."""
_OURS = "/ropeteam_trainer/"
_SHIM = "/ropeteam_trainer/agent/script/rankmain.py"
_COLLECTIVES = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/autograd/")
"""Folders of code that waits for other ranks; a backward pass contains the collectives of DDP."""
_MAX_TEXT = 200


def parse_hang(lines: Iterable[str]) -> Hang | None:
    """The place of the main thread: "Current thread", which received the signal, or else the last listed.
    None: the lines contain no stack."""
    threads: list[tuple[str, list[tuple[str, ...]]]] = []
    for line in lines:
        if head := _THREAD.search(line):
            threads.append((head[1], []))
        elif threads and (found := _FRAME.match(line)):
            threads[-1][1].append(found.groups())
    main = next((frames for title, frames in threads if title == "Current thread"), None)
    frames = main or (threads[-1][1] if threads else [])
    return _hang_of_thread(frames) if frames else None


def _hang_of_thread(frames: list[tuple[str, ...]]) -> Hang:
    """The place where a thread hangs: its innermost frame of the user's code, else its innermost frame.

    `frames`: (file, line, function), innermost first as printed. Not empty. Frames from the shim outwards
    are left out: they are not the script's.
    """
    shim = (index for index, (file, *_) in enumerate(frames) if file.endswith(_SHIM))
    inside = frames[: next(shim, len(frames))]
    own = [n for n, (file, *_) in enumerate(inside) if not (_LIBRARY.search(file) or _OURS in file)]
    file, line, function = frames[own[0] if own else 0]
    text = f"{file.rpartition('/')[2]}:{line} ({function})"[:_MAX_TEXT]
    called = inside[: own[0]] if own else inside
    waits = any(part in file for file, *_ in called for part in _COLLECTIVES)
    return Hang("".join(each if each.isprintable() else "?" for each in text), waits)
