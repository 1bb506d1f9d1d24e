"""The one server that this process forks others from. It imports once what they would all import.

multiprocessing has one of them, and forgets the modules of an earlier caller when another names its own: all
name them here, before the first process is forked.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

_modules = ["lab.ranks.preload"]
"""That one is the last: it keeps out of garbage collections what is there by then."""


def forkserver(*modules: str) -> ForkServerContext:
    """The server, which imports these modules, too."""
    _modules[:0] = [name for name in modules if name not in _modules]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_modules)
    return context
