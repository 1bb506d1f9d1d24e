"""Reports of every Python process of a rank to the agent: the process groups it forms, the exception that
ends it, and, on a signal, the stacks of all of its threads.

The agent copies this file into a folder of its own as `sitecustomize.py`, first on PYTHONPATH, so every
Python process that a rank or launcher starts reads it; rankmain.py and the zygote call `install` themselves.
Order: hooks wait for torch to be imported -> the user's own sitecustomize runs, as without an agent.
Promise: no torch is imported, and no line of a script changes; a failed report is dropped, and the script
continues. Limits: processes without this folder on PYTHONPATH (`python -S`, `-I`, `env -i`) report nothing,
nor does one that ends by `os._exit`. All of this is Python 3.10's standard library and this file alone.
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
    from types import ModuleType, TracebackType
    from typing import Any

    Hook = Callable[[Any], None]

_SEND_SECONDS = 5
STACKS_SIGNAL = 58
"""SIGRTMAX - 6. Users of real-time signals count from the first on (gRPC: the third) or take the last."""
_MARK = "_ropeteam_children"
"""Attribute of `sys`: the hooks of this process are installed, by whichever copy of this file."""


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
            send({"joins": True})
        result = original(*args, **kwargs)
        _count_formed(c10d)
        _report_end()
        try:
            sent = {"id": _id_of(c10d), "size": c10d.get_world_size(), "rank": c10d.get_rank(), "who": _who()}
            send({"group": sent})
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
        self.run = _reporting(self.run)
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
        wrap(_reporting(fn), i, *args)

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

# ---- exceptions


def error_of(error: BaseException, ours: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fields of FromRank for an uncaught exception; a launcher's: the exit of the first of its processes.
    `ours`: prefixes of file names that are not the script's."""
    name, where, text = type(error).__name__, _where(error, ours), _first_line(error)
    own = {
        "error_type": name,
        "error_class": f"{type(error).__module__}.{type(error).__qualname__}",
        "fingerprint": f"{name} at {where}",
        "message": f"{name}: {text} ({where})" if text else f"{name} ({where})",
    }
    if name not in _LAUNCHER_ERRORS:
        return own
    try:
        return {**own, "launcher": True, **_LAUNCHER_ERRORS[name](error)}
    except Exception:  # another release's launcher: its own text is enough
        return own


def _first_line(error: BaseException) -> str:
    try:
        return (str(error).strip().splitlines() or [""])[0][:300]
    except Exception as broken:
        return f"its __str__ raised {type(broken).__name__}"


def _where(error: BaseException, ours: tuple[str, ...]) -> str:
    """`train.py:31`: the innermost frame of the user's own code, else the innermost of all."""
    import sysconfig

    foreign = ("<", *ours, *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    found, has_user_frame = "?", False
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        is_hook = frame.tb_frame.f_globals.get("_MARK") == _MARK  # of any copy of this file
        is_user = not is_hook and (name in ("<string>", "<stdin>") or not name.startswith(foreign))
        if is_user or not (has_user_frame or is_hook):
            found, has_user_frame = f"{os.path.basename(name)}:{frame.tb_lineno}", has_user_frame or is_user
        frame = frame.tb_next
    if isinstance(error, SyntaxError) and not has_user_frame:
        found = f"{os.path.basename(error.filename or '?')}:{error.lineno}"
    return found


_NO_TEXT = {"error_class": "", "fingerprint": "", "message": ""}
"""Empty text, for exceptions that hold no more than the exit of a rank."""
_CONSEQUENCES = (1, -6, -15)  # exits of a process that misses a peer, or that its launcher ends


def _torchrun_failure(error: Any) -> dict[str, Any]:
    """torch.distributed.elastic.multiprocessing.errors.ChildFailedError"""
    unreported = [each for each in error.failures.items() if each[1].exitcode not in _CONSEQUENCES]
    rank, failure = (*unreported, error.get_first_failure())[0]
    return {"rank": int(rank), **_NO_TEXT, **_exit_fields(failure.exitcode)}


def _spawn_failure(error: Any) -> dict[str, Any]:
    """torch.multiprocessing.spawn.ProcessExitedException, ProcessRaisedException"""
    return {"rank": error.first[0], **_NO_TEXT, **_exit_fields(error.first[1])}


def _exit_fields(code: int) -> dict[str, Any]:
    return {"signal": -code} if code < 0 else {"code": code}


_LAUNCHER_ERRORS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "ChildFailedError": _torchrun_failure,
    "ProcessExitedException": _spawn_failure,
    "ProcessRaisedException": _spawn_failure,
    "CalledProcessError": lambda error: _exit_fields(error.returncode),
}


# ---- reporting


def send(line: dict[str, Any]) -> None:
    """Send one FromRank to the agent, if there is one. Raises OSError."""
    path = os.environ.get("ROPETEAM_AGENT_SOCKET")
    if not path:
        return
    import json
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SEND_SECONDS)
        connection.connect(path)
        connection.sendall(json.dumps(line).encode() + b"\n")


def _report_errors() -> None:
    """Report an uncaught exception of a process that rankmain.py does not run."""
    getattr(sys, _MARK)["is child"] = True
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if getattr(sys, _MARK)["is child"]:
            _report_as_child(error)
        previous(kind, error, trace)

    sys.excepthook = hook


def _reporting(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_report(*args: Any) -> Any:
        try:
            return run(*args)
        except Exception as error:
            _report_as_child(error)
            raise

    return run_and_report


def _report_as_child(error: BaseException) -> None:
    getattr(sys, _MARK)["failed"] = True
    try:
        send({**_rank_field(), **error_of(error), "child": True})
    except Exception as broken:
        print(f"ropeteam: {type(error).__name__} is not reported to the agent: {broken!r}", file=sys.stderr)


def _report_end() -> None:
    """Report the end of a group's member that is no rank of the agent: peers that wait for it fail later."""
    state: dict[str, bool] = getattr(sys, _MARK)
    if not state.get("is child") or state.get("end is reported"):
        return
    state["end is reported"] = True
    import atexit
    import contextlib

    def at_end() -> None:
        if not state.get("failed") and (rank := _rank_field()):
            with contextlib.suppress(OSError):  # its launcher reports how it ended
                send({"ended": True, "child": True, **rank})

    atexit.register(at_end)


def _rank_field() -> dict[str, int]:
    """The rank of this process; in one of mp.spawn its own: RANK may be that of its parent."""
    rank = str(getattr(sys, _MARK).get("rank", os.environ.get("RANK", "")))
    return {"rank": int(rank)} if rank.isdecimal() else {}


def _customize() -> None:
    """Run as `sitecustomize`: our part, then another `sitecustomize`, if there is one."""
    here = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if os.environ.get("ROPETEAM_AGENT_SOCKET"):
        install()
        _report_errors()
    us = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = us


if __name__ == "sitecustomize":
    _customize()
