"""Hooks in every Python process of a rank: they report to the agent (reporting.py) the process groups that it
forms and the exception that ends it; print, on a signal, the stacks of all of its threads; and let its
multiprocessing use the folder that goes with the rank.

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
_MARK = reporting._MARK  # reporting._error_location knows frames of ours by this global of their module


def install() -> None:
    """Install the hooks and the stacks signal, once per process. Call it before torch is imported."""
    if hasattr(sys, _MARK):
        return
    setattr(sys, _MARK, {})
    _register_stacks_signal()
    hook_into(_HOOKS)


def mark_as_rank() -> None:
    """Mark this process as a rank itself: rankmain.py reports its exception, so no hook reports it as a
    child's. Call it after `install`."""
    getattr(sys, _MARK)["is child"] = False


def hook_into(hooks: dict[str, Hook]) -> None:
    """Run each hook once, with its module: at once if that is imported already, else when it is. `hooks`: by
    module name. A hook that fails is a line on stderr."""
    waiting = dict(hooks)
    for name in [name for name in waiting if name in sys.modules]:
        _run_hook(waiting.pop(name), sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(waiting))


class _AfterImport:
    """A finder of sys.meta_path that lets the other finders find a module, and runs the hook once the module
    is executed."""

    def __init__(self, waiting: dict[str, Hook]) -> None:
        self._waiting = waiting

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """The others' spec of a module that waits for a hook; None for all other modules."""
        hook = self._waiting.pop(name, None)
        if hook is None:
            return None
        import importlib.util

        spec = importlib.util.find_spec(name)  # calls this finder again, and finds nothing
        if spec is not None and spec.loader is not None:
            # The loader itself stays: other code reads its type, its file, its sources.
            spec.loader.exec_module = _with_hook(spec.loader.exec_module, hook)  # type: ignore
        return spec


def _with_hook(execute: Hook, hook: Hook) -> Hook:
    """An exec_module that executes the module, then runs its hook."""

    def execute_and_hook(module: ModuleType) -> None:
        execute(module)
        _run_hook(hook, module)

    return execute_and_hook


def _run_hook(hook: Hook, module: ModuleType) -> None:
    """Run a hook. Never raises."""
    try:
        hook(module)
    except Exception as error:
        print(
            f"ropeteam: no hook in {module.__name__}: {error!r}. The script continues, and the agent "
            "knows less of it.",
            file=sys.stderr,
        )


# ---- stacks


def _register_stacks_signal() -> None:
    """Let STACKS_SIGNAL print all stacks to stderr, by C code: the interpreter may hang. An existing handler
    stays. Never raises."""
    try:
        import _signal  # type: ignore[import-not-found]  # cheaper than `signal`, which creates enums
        import faulthandler

        if _signal.getsignal(STACKS_SIGNAL) == _signal.SIG_DFL:
            faulthandler.register(STACKS_SIGNAL, file=2)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(
            f"ropeteam: if this process hangs, its stacks are not printed: {error!r}. The script continues.",
            file=sys.stderr,
        )


# ---- process groups


def _hook_process_groups(c10d: Any) -> None:
    """Hook into torch.distributed.distributed_c10d: report that init_process_group is called, and then the
    default process group that has formed. Exceptions of init_process_group itself pass through."""
    import contextlib
    import functools

    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(OSError):  # not essential: the group is reported once it has formed
            reporting.send({"joins": True})
        result = original(*args, **kwargs)
        _count_group(c10d)
        reporting.report_end()
        try:
            size, rank = c10d.get_world_size(), c10d.get_rank()
            sent = {"id": _group_id(c10d), "size": size, "rank": rank, "who": _program_name()}
            reporting.send({"group": sent})
        except Exception as error:
            print(
                f"ropeteam: a process group is not reported to the agent: {error!r}. The script continues.",
                file=sys.stderr,
            )
        return result

    c10d.init_process_group = init_process_group


def _count_group(c10d: Any) -> None:
    """Count the group that has just formed, by its size, if it is on our store: `_hook_rendezvous` gives the
    next group of that size another prefix. Every member counts the same, since each forms every group."""
    state: dict[str, Any] = getattr(sys, _MARK)
    if "rank" in state:  # a process of mp.spawn: its index there may not be its rank
        state["rank"] = c10d.get_rank()
    if state.pop("is on our store", False):
        formed = state.setdefault("formed", {})
        formed[c10d.get_world_size()] = formed.get(c10d.get_world_size(), 0) + 1


def _group_id(c10d: Any) -> str:
    """An id of the default group, the same for all its members: the first one writes it into their store.
    "": the store has no compare_set, or is gone."""
    try:
        mine = f"{os.uname().nodename}:{os.getpid()}:{os.urandom(4).hex()}"
        return str(c10d._get_default_store().compare_set("ropeteam/group", "", mine).decode())
    except Exception:
        return ""


def _program_name() -> str:
    """The program that this process runs, for people: a module's name, or the file name of a script."""
    main: Any = sys.modules.get("__main__")
    if (spec := getattr(main, "__spec__", None)) and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")[:100]
    return os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")[:100]


def _hook_rendezvous(rendezvous: Any) -> None:
    """Hook into torch.distributed.rendezvous, for scripts that form groups otherwise than torchrun expects.

    TORCHELASTIC_USE_AGENT_STORE means the store of our plan alone: a script that sets another address for its
    processes hosts the store there, as under plain `python`. A second group of the same size on our store
    gets a prefix of its own: in the keys of the first one torch would read the addresses of its peers then,
    and sometimes be refused there.
    """
    create, is_ours = rendezvous._create_c10d_store, rendezvous._torchelastic_use_agent_store
    state: dict[str, Any] = getattr(sys, _MARK)
    addresses: list[str] = []  # of the calls of create_store that are active: `create` calls use_agent_store

    def use_agent_store() -> bool:
        ours = os.environ.get("ROPETEAM_STORE_ADDRESS")
        return bool(is_ours()) and not (ours and addresses and addresses[-1] != ours)

    def create_store(hostname: str, port: int, rank: int, world_size: int, *args: Any, **kwargs: Any) -> Any:
        addresses.append(f"{hostname}:{port}")
        try:
            store = create(hostname, port, rank, world_size, *args, **kwargs)
            state["is on our store"] = addresses[-1] == os.environ.get("ROPETEAM_STORE_ADDRESS")
        finally:
            addresses.pop()
        before = state["is on our store"] and state.get("formed", {}).get(world_size)
        return sys.modules["torch.distributed"].PrefixStore(f"again/{before}", store) if before else store

    rendezvous._torchelastic_use_agent_store = use_agent_store
    rendezvous._create_c10d_store = create_store


def _hook_multiprocessing(process: Any) -> None:
    """Hook into multiprocessing.process, which prints the exception that ends a child without calling
    sys.excepthook: report it."""
    original = process.BaseProcess._bootstrap

    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.run = reporting.reported(self.run)
        return original(self, *args, **kwargs)

    process.BaseProcess._bootstrap = _bootstrap
    use_folder(process)


def use_folder(process: Any) -> None:
    """Let multiprocessing, of this process and all that it starts, put its sockets into the folder that the
    agent removes with the rank: what is killed removes nothing itself. Only that, not TMPDIR, where scripts
    share files and torch keeps what it has compiled. `process`: module multiprocessing.process."""
    folder = os.environ.get("ROPETEAM_MULTIPROCESSING")
    if folder and os.access(folder, os.W_OK | os.X_OK):  # the process may have another user, or another root
        process.current_process()._config.setdefault("tempdir", folder)


def _hook_spawn(spawn: Any) -> None:
    """Hook into torch.multiprocessing.spawn: report the exception of a child, and let the parent find the
    child that failed first.

    A child writes its exception to a file and exits 1. Of several that have exited the parent raises the
    error of any one, perhaps of one that failed because another had exited. `error.first`, which reporting.py
    reads, is (index, exit code) of a child that exited without such a file, else of the one that was raised.
    """
    import functools
    from multiprocessing.connection import wait

    wrap, join = spawn._wrap, spawn.ProcessContext.join

    @functools.wraps(wrap)  # a child looks for it by this name
    def _wrap(fn: Any, i: int, *args: Any) -> None:
        getattr(sys, _MARK)["rank"] = i
        wrap(reporting.reported(fn), i, *args)

    def join_and_look(self: Any, timeout: float | None = None, *args: Any, **kwargs: Any) -> Any:
        if self.sentinels:
            wait(list(self.sentinels), timeout)  # `join` waits no more, and finds what is recorded here
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
    "torch.distributed.distributed_c10d": _hook_process_groups,
    "torch.distributed.rendezvous": _hook_rendezvous,
    "multiprocessing.process": _hook_multiprocessing,
    "torch.multiprocessing.spawn": _hook_spawn,
}


def _run_as_sitecustomize() -> None:
    """Run as `sitecustomize`: our part, if an agent started this process, then the user's `sitecustomize`, if
    there is one. Our folder and modules are removed, so that the script does not see them."""
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
    _run_as_sitecustomize()
