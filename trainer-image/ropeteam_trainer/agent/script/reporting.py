"""Reports of a Python process of a rank to the agent: the exception that ends it, or its end.

Beside childhooks.py: a part of our package for rankmain.py and the zygote, and a file of its own,
`_ropeteam_reporting`, for every other process of a rank. Promise: a report that cannot be sent is dropped.
"""

from __future__ import annotations

# ruff: noqa: PTH119
# every Python process of a job pays for each import here
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

_SEND_SECONDS = 5
_MARK = "_ropeteam_children"
"""Attribute of `sys`: a dict with the state of the hooks, whichever copy of childhooks.py has installed them.
Keys: "is child" (not the rank itself), "rank" (of a process of mp.spawn), "failed" (an exception was sent),
"end is reported", "is on our store" (the group that is being formed), "formed" (number of such groups by
size). As a global, `_MARK` marks frames of ours (`_error_location`)."""


def error_of(error: BaseException, ours: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fields of FromRank that describe an uncaught exception. That of a launcher describes the exit of one of
    its processes instead. `ours`: prefixes of file names that are not the script's."""
    name, where, text = type(error).__name__, _error_location(error, ours), _first_line(error)
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
    """First line of the exception's text, cut. Never raises, although __str__ may be the user's code."""
    try:
        return (str(error).strip().splitlines() or [""])[0][:300]
    except Exception as broken:
        return f"its __str__ raised {type(broken).__name__}"


def _error_location(error: BaseException, ours: tuple[str, ...]) -> str:
    """`train.py:31`: the innermost frame of the user's own code, else the innermost that is not our hook's.

    Not the user's are the standard library, installed packages, `ours` and frozen modules; text that
    `python -c` runs is. A SyntaxError has no frame in the file that it is about, and names that file itself.
    "?": there is no traceback.
    """
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
_CONSEQUENCES = (1, -6, -15)
"""Exit codes (negative: signals) of a process that misses a peer, or that its launcher ends."""


def _torchrun_failure(error: Any) -> dict[str, Any]:
    """Fields for a ChildFailedError of torch.distributed.elastic: the first process whose exit is no
    consequence of another's, else torchrun's own choice, the first in time."""
    unreported = [each for each in error.failures.items() if each[1].exitcode not in _CONSEQUENCES]
    rank, failure = (*unreported, error.get_first_failure())[0]
    return {"rank": int(rank), **_NO_TEXT, **_exit_fields(failure.exitcode)}


def _spawn_failure(error: Any) -> dict[str, Any]:
    """Fields for a ProcessExitedException or ProcessRaisedException of torch.multiprocessing.spawn, to which
    childhooks.py has added `first`."""
    return {"rank": error.first[0], **_NO_TEXT, **_exit_fields(error.first[1])}


def _exit_fields(code: int) -> dict[str, Any]:
    """Fields for an exit code as subprocess gives it: negative for a signal."""
    return {"signal": -code} if code < 0 else {"code": code}


_LAUNCHER_ERRORS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "ChildFailedError": _torchrun_failure,
    "ProcessExitedException": _spawn_failure,
    "ProcessRaisedException": _spawn_failure,
    "CalledProcessError": lambda error: _exit_fields(error.returncode),
}
"""By class name: without an import of torch. Exceptions that stand for the exit of another process."""


def send(line: dict[str, Any]) -> None:
    """Send one FromRank to the agent, on a connection of its own, if there is an agent. Blocks for at most
    _SEND_SECONDS per step. Raises OSError."""
    path = os.environ.get("ROPETEAM_AGENT_SOCKET")
    if not path:
        return
    import json
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SEND_SECONDS)
        connection.connect(path)
        connection.sendall(json.dumps(line).encode() + b"\n")


def report_uncaught() -> None:
    """Mark this process as a child, and hook sys.excepthook: an uncaught exception is reported, then handled
    as before. For processes that rankmain.py does not run. Call it after childhooks.install."""
    getattr(sys, _MARK)["is child"] = True
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if getattr(sys, _MARK)["is child"]:
            _report_as_child(error)
        previous(kind, error, trace)

    sys.excepthook = hook


def reported(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, whose exception is reported as a child's before it is raised to the caller."""

    def run_and_report(*args: Any) -> Any:
        try:
            return run(*args)
        except Exception as error:
            _report_as_child(error)
            raise

    return run_and_report


def _report_as_child(error: BaseException) -> None:
    """Report an exception as that of a child, and note that this process failed. Never raises."""
    getattr(sys, _MARK)["failed"] = True
    try:
        send({**_rank_field(), **error_of(error), "child": True})
    except Exception as broken:
        name = type(error).__name__
        print(f"ropeteam: the {name} below is not reported to the agent: {broken!r}", file=sys.stderr)


def report_end() -> None:
    """Report, when this process exits without an exception, that it has ended: peers that wait for it will
    fail later. Only for a child that has formed a process group; registered once."""
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
    """Field `rank` of a message: in a process of mp.spawn its index, or rank in its group; else $RANK. Empty
    if neither is known: $RANK of the parent would be wrong for mp.spawn."""
    rank = str(getattr(sys, _MARK).get("rank", os.environ.get("RANK", "")))
    return {"rank": int(rank)} if rank.isdecimal() else {}
