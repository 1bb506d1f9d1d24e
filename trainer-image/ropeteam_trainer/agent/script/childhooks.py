"""Hooks in every Python process of a rank: they report to the agent (reporting.py) the process groups that it
forms and the exception that ends it; and, on a signal, print the stacks of all of its threads.

The agent copies both files into a folder of its own, this one as `sitecustomize.py`, first on PYTHONPATH, so
every Python process that a rank or launcher starts reads it; rankmain.py and the zygote call `install`.
Order: hooks wait for torch to be imported -> the user's own sitecustomize runs, as without an agent.
Promise: no torch is imported, and no line of a script changes; a failed report is dropped, and the script
continues. Limits: processes without this folder on PYTHONPATH (`python -S`, `-I`, `env -i`) report nothing,
nor does one that ends by `os._exit`. All of this is Python 3.10's standard library and these two files alone.
"""

from __future__ import annotations

# ruff: noqa: PTH110, PTH119, PTH120
# every Python process of a job pays for each import here
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Hook = Callable[[Any], None]

if TYPE_CHECKING or __name__ != "sitecustomize":
    from ropeteam_trainer.agent.script import reporting
else:
    import _ropeteam_reporting as reporting

STACKS_SIGNAL = 58
"""SIGRTMAX - 6. Users of real-time signals count from the first on (gRPC: the third) or take the last."""
_MARK = reporting._MARK  # reporting._where knows frames of ours by this global of their module


def install() -> None:
    """Install the hooks, once per process, before torch is imported."""
    if hasattr(sys, _MARK):
        return
    setattr(sys, _MARK, {})
    _register_stacks_signal()
    hook_into(_HOOKS)


def mark_as_rank() -> None:
    """Mark this process as a rank itself: rankmain.py reports its exception."""
    getattr(sys, _MARK)["is child"] = False


def hook_into(hooks: dict[str, Hook]) -> None:
    """Install hooks by module name: at once where the module is imported already, else when it is."""
    waiting = dict(hooks)
    for name in [name for name in waiting if name in sys.modules]:
        _attempt(waiting.pop(name), sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(waiting))


class _AfterImport:
    """A finder that lets the others find a module, and runs the hook once the module is executed."""

    def __init__(self, waiting: dict[str, Hook]) -> None:
        self._waiting = waiting

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        hook = self._waiting.pop(name, None)
        if hook is None:
            return None
        import importlib.util

        spec = importlib.util.find_spec(name)  # calls this finder again, and finds nothing
        if spec is not None and spec.loader is not None:
            # The loader itself stays: other code reads its type, its file, its sources.
            spec.loader.exec_module = _followed_by(spec.loader.exec_module, hook)  # type: ignore
        return spec


def _followed_by(execute: Hook, hook: Hook) -> Hook:
    def both(module: ModuleType) -> None:
        execute(module)
        _attempt(hook, module)

    return both


def _attempt(hook: Hook, module: ModuleType) -> None:
    try:
        hook(module)
    except Exception as error:
        print(f"ropeteam: no hook in {module.__name__}: {error!r}. The script continues.", file=sys.stderr)


# ---- stacks


def _register_stacks_signal() -> None:
    """Print stacks to stderr on a signal, by C code: the interpreter may hang. A script's handler wins."""
    try:
        import _signal  # type: ignore[import-not-found]  # `signal` costs an enum
        import faulthandler

        if _signal.getsignal(STACKS_SIGNAL) == _signal.SIG_DFL:
            faulthandler.register(STACKS_SIGNAL, file=2)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"ropeteam: no stacks of this process when it hangs: {error!r}", file=sys.stderr)


# ---- process groups


def _report_groups(c10d: Any) -> None:
    """torch.distributed.distributed_c10d: report each default process group once it has formed."""
    import contextlib
    import functools

    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(OSError):  # the group is reported once it has formed
            reporting.send({"joins": True})
        result = original(*args, **kwargs)
        _count_formed(c10d)
        reporting.report_end()
        try:
            sent = {"id": _id_of(c10d), "size": c10d.get_world_size(), "rank": c10d.get_rank(), "who": _who()}
            reporting.send({"group": sent})
        except Exception as error:
            print(f"ropeteam: a process group is not reported: {error!r}", file=sys.stderr)
        return result

    c10d.init_process_group = init_process_group


def _count_formed(c10d: Any) -> None:
    """Count groups of all ranks on our store: a later one is the next for each of the ranks."""
    state: dict[str, Any] = getattr(sys, _MARK)
    if "rank" in state:
        state["rank"] = c10d.get_rank()
    if state.pop("is on our store", False):
        formed = state.setdefault("formed", {})
        formed[c10d.get_world_size()] = formed.get(c10d.get_world_size(), 0) + 1


def _id_of(c10d: Any) -> str:
    """An id of a group, the same for all its members: the first one writes it into their store."""
    try:
        mine = f"{os.uname().nodename}:{os.getpid()}:{os.urandom(4).hex()}"
        return str(c10d._get_default_store().compare_set("ropeteam/group", "", mine).decode())
    except Exception:  # a store of some other kind
        return ""


def _who() -> str:
    """The program, for people."""
    main: Any = sys.modules.get("__main__")
    if (spec := getattr(main, "__spec__", None)) and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")[:100]
    return os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")[:100]


def _allow_own_stores(rendezvous: Any) -> None:
    """torch.distributed.rendezvous: TORCHELASTIC_USE_AGENT_STORE means the store of our plan alone. A script
    that sets another address for its processes hosts the store there, as under plain `python`. One that forms
    its group again on our store finds it empty: torch would read the addresses of peers of the previous
    group, and now and then be refused there."""
    create, is_ours = rendezvous._create_c10d_store, rendezvous._torchelastic_use_agent_store
    state: dict[str, Any] = getattr(sys, _MARK)
    here: list[str] = []

    def use_agent_store() -> bool:
        ours = os.environ.get("ROPETEAM_STORE_ADDRESS")
        return bool(is_ours()) and not (ours and here and here[-1] != ours)

    def create_store(hostname: str, port: int, rank: int, world_size: int, *args: Any, **kwargs: Any) -> Any:
        here.append(f"{hostname}:{port}")
        try:
            store = create(hostname, port, rank, world_size, *args, **kwargs)
            state["is on our store"] = here[-1] == os.environ.get("ROPETEAM_STORE_ADDRESS")
        finally:
            here.pop()
        before = state["is on our store"] and state.get("formed", {}).get(world_size)
        return sys.modules["torch.distributed"].PrefixStore(f"again/{before}", store) if before else store

    rendezvous._torchelastic_use_agent_store = use_agent_store
    rendezvous._create_c10d_store = create_store


def _report_processes(process: Any) -> None:
    """multiprocessing.process, which prints the exception that ends a child, and calls no hook."""
    original = process.BaseProcess._bootstrap

    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.run = reporting.reported(self.run)
        return original(self, *args, **kwargs)

    process.BaseProcess._bootstrap = _bootstrap


def _report_spawned(spawn: Any) -> None:
    """torch.multiprocessing.spawn: a child writes its exception to a file and exits 1. Of several that have
    exited the parent raises the error of any one, perhaps of one that failed because another had exited: this
    reports one that could not report for itself, if there is one."""
    import functools
    from multiprocessing.connection import wait

    wrap, join = spawn._wrap, spawn.ProcessContext.join

    @functools.wraps(wrap)  # a child looks for it by this name
    def _wrap(fn: Any, i: int, *args: Any) -> None:
        getattr(sys, _MARK)["rank"] = i
        wrap(reporting.reported(fn), i, *args)

    def join_and_look(self: Any, timeout: float | None = None, *args: Any, **kwargs: Any) -> Any:
        if self.sentinels:
            wait(list(self.sentinels), timeout)
        known = enumerate(zip(self.processes, getattr(self, "error_files", ()), strict=False))
        unreported = [  # before `join` ends the others
            (i, each.exitcode) for i, (each, file) in known if each.exitcode and not os.path.exists(file)
        ]
        try:
            return join(self, 0, *args, **kwargs)
        except spawn.ProcessException as error:
            error.first = (*unreported, (error.error_index, getattr(error, "exit_code", 1)))[0]
            raise

    spawn._wrap, spawn.ProcessContext.join = _wrap, join_and_look


_HOOKS: dict[str, Hook] = {
    "torch.distributed.distributed_c10d": _report_groups,
    "torch.distributed.rendezvous": _allow_own_stores,
    "multiprocessing.process": _report_processes,
    "torch.multiprocessing.spawn": _report_spawned,
}


def _customize() -> None:
    """Run as `sitecustomize`: our part, then another `sitecustomize`, if there is one."""
    here = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if os.environ.get("ROPETEAM_AGENT_SOCKET"):
        install()
        reporting.report_uncaught()
    us = sys.modules.pop("sitecustomize")
    del sys.modules["_ropeteam_reporting"]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = us


if __name__ == "sitecustomize":
    _customize()
