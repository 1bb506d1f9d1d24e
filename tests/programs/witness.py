"""The campaign's own eye in a program's interpreter: which process joined which torch process group.

Copied into the environment of each project, and imported there at every start by a .pth file; it does
nothing unless PROGRAMS_WITNESS names a file. There it writes a line per process that imports
torch.distributed, and one per group that such a process joins. What a group is the default store knows, not
us and not the product: the first rank that reaches it names the group, all others read that name.
Limits: torch only; a group that another library makes by itself is not seen.
"""

from __future__ import annotations

import functools
import importlib.machinery
import json
import os
import sys
import time
import uuid

_FILE = "PROGRAMS_WITNESS"
_MODULE = "torch.distributed.distributed_c10d"


def _write(group: str, rank: int = 0, size: int = 0) -> None:
    row = {"pid": os.getpid(), "group": group, "rank": rank, "size": size, "time": time.time()}
    line = (json.dumps(row) + "\n").encode()
    place = os.open(os.environ[_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(place, line)
    finally:
        os.close(place)


def _name(store) -> str:
    """One name for all who share this store."""
    name = store.compare_set("ropeteam-programs-witness", "", uuid.uuid4().hex)
    return name.decode() if isinstance(name, bytes) else str(name)


def _watch(module) -> None:
    init = module.init_process_group

    @functools.wraps(init)
    def watched(*args, **kwargs):
        done = init(*args, **kwargs)
        _write(_name(module._get_default_store()), module.get_rank(), module.get_world_size())
        return done

    module.init_process_group = watched


class _Finder:
    """Runs `_watch` on that one module as soon as it is loaded, before anybody has its names."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def run_and_watch(module):
            run(module)
            _watch(module)
            if {"RANK", "NODE_RANK"} & set(os.environ):  # not helpers of the product that use torch
                _write("")

        spec.loader.exec_module = run_and_watch  # type: ignore[method-assign]
        return spec


if os.environ.get(_FILE):
    sys.meta_path.insert(0, _Finder)
