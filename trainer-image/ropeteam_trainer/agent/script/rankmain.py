"""The shim around a user's script: runs it as `python` would, and reports how it ended.

    rank.py KIND SCRIPT [arguments]      written by agent/processes/spawn.py; calls main() with these

The zygote and planning/shim.py call main() too. The script finds all (`__main__`, sys.argv, sys.path[0],
__file__, pickling, multiprocessing) as without the shim; our package is appended to sys.path, last. An
uncaught exception is printed without the shim's frames and reported to the agent; the script's end is marked
in the heartbeat page, because finished processes sometimes abort while they exit. Runs in the job's
interpreter: imports little, and the rest of our package only once the script has ended.
"""

from __future__ import annotations

# ruff: noqa: PTH100, PTH109, PTH113, PTH118, PTH120
# pathlib would be one more import before the script
import os
import runpy
import sys
import types
from typing import Any, NoReturn

from ropeteam_trainer.agent.script import childhooks, hooks, reporting

_OURS = "ropeteam_trainer"
library: dict[str, types.ModuleType] = {}
"""Modules of the job's library that the zygote has imported. Empty in a process that was exec'ed."""
_NAMES = {"code": "-c", "stdin": "-"}
"""sys.argv[0] of `python -c` and `python -`, where the script is text."""


def main(root: str, kind: str, argv: list[str]) -> NoReturn:
    """Run the user's code as `__main__`, then raise SystemExit with its exit code.

    `root`: the folder or zip that holds our package. `kind`: script, module, run-path (a folder or zip), code
    or stdin. `argv`: the path, the module's name or the code, then the arguments of the script.

    Order: imports are set up before anything is hooked; an uncaught exception is reported to the agent before
    it is printed; the end is marked before exit handlers run. SystemExit passes through.
    """
    prepare_imports(root)
    _set_process_name()
    childhooks.install()
    childhooks.mark_as_rank()
    hooks.install()
    sys.argv = [_NAMES.get(kind, argv[0]), *argv[1:]]
    try:
        _run_user_code(kind, argv[0], root)
    except SystemExit as end:
        if end.code is None or end.code == 0:
            _mark_reached_end()
        else:
            sys.last_value = end
        raise
    except BaseException as error:
        # As the interpreter does; exit handlers read from last_value that this is no clean end.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        trimmed = _without_shim_frames(error.__traceback__)
        _report_error(error.with_traceback(trimmed), root)
        sys.excepthook(type(error), error, trimmed)
        sys.exit(1)
    _mark_reached_end()
    sys.exit(0)


def prepare_imports(root: str) -> None:
    """Remove the shim's folder from sys.path and our package from sys.modules, and append `root` to sys.path,
    so that a ropeteam_trainer in the image is imported instead of ours. Its release is not checked: what all
    releases have in common is in contract/local.py. Modules that this file has imported stay usable."""
    shim = os.path.dirname(os.path.abspath(sys.modules["__main__"].__file__ or ""))
    sys.path[:] = [entry for entry in sys.path if entry not in (root, shim)]
    for name in [name for name in sys.modules if name.partition(".")[0] == _OURS]:
        del sys.modules[name]
    sys.path.append(root)


def _use_imported_library() -> None:
    """Put the library that the zygote has imported into sys.modules, unless the script would find another
    one: beside itself, for example. Call it when sys.path is that of the script."""
    if not library:
        return
    import importlib.util

    spec = importlib.util.find_spec(_OURS)
    if spec is not None and spec.origin == library[_OURS].__file__:
        sys.modules.update(library)


def _hide_servers_secret(root: str) -> None:
    """Remove the secret of parameter servers from the environment, which the script and its children see, if
    the library that the script will import requests it from the agent. One of an earlier release, in the
    image, reads the environment. Call it when sys.path is that of the script."""
    plan = os.environ.get("ROPETEAM_RANK_PLAN", "")
    # Textually, because most ranks have no secret, and json would be one more import before the script.
    if '"secret":"' in plan and '"secret":""' not in plan and _library_requests_secret(root):
        import json

        os.environ["ROPETEAM_RANK_PLAN"] = json.dumps(json.loads(plan) | {"secret": ""})


def _library_requests_secret(root: str) -> bool:
    """Whether the library in sys.path requests the secret from the agent. Ours does, and so does one whose
    contract names the field of that request; it is not imported here."""
    import importlib.util

    spec = importlib.util.find_spec(_OURS)
    origin = spec.origin if spec else None
    if origin is None or origin.startswith(root):
        return True
    try:
        with open(os.path.join(os.path.dirname(origin), "contract", "local.py"), "rb") as file:
            return b"wants_secret" in file.read()
    except OSError:
        return False


def _set_process_name() -> None:
    """Set the process name in `ps` and `top` to `rank N`: a forked rank would have that of its zygote."""
    with open("/proc/self/comm", "w") as name:
        name.write(f"rank {os.environ.get('RANK', '?')}")


def _run_user_code(kind: str, target: str, root: str) -> None:
    """Execute the script as `__main__`, with sys.path[0] as `python` would set it for this kind; not with
    flags -I or -P (`is_safe`). `target`: path, module name or code. Raises what the script raises."""
    is_safe = bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    if kind == "run-path" or (kind == "script" and not os.path.isfile(target)):
        # A folder or zip with a __main__.py, or the error for a path that does not exist.
        path = os.path.join(os.getcwd(), target)
        sys.path.insert(0, path)  # as runpy does it
        _hide_servers_secret(root)
        _use_imported_library()
        del sys.path[0]
        runpy.run_path(path, run_name="__main__")
        return
    module = types.ModuleType("__main__")
    if kind in _NAMES:
        if not is_safe:
            sys.path.insert(0, "")
        _use_imported_library()
        code = _text_code(module, kind, target)
    elif kind == "module":
        if not is_safe:
            sys.path.insert(0, os.getcwd())
        _use_imported_library()
        code = _module_code(module, target)
    else:
        if not is_safe:
            sys.path.insert(0, os.path.dirname(os.path.realpath(target)))
        _use_imported_library()
        code = _script_code(module, target)
    _hide_servers_secret(root)  # depends on the library that the script will import, which may lie beside it
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _script_code(module: types.ModuleType, path: str) -> types.CodeType:
    """Compile a script, and set the attributes of `module` as `python script.py` would."""
    import importlib.machinery
    import io

    path = os.path.join(os.getcwd(), path)  # not normalized, as python does it
    module.__file__ = path
    module.__dict__.update(__cached__=None, __builtins__=__builtins__)
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _text_code(module: types.ModuleType, kind: str, text: str) -> types.CodeType:
    """Compile code, and set the attributes of `module` as `python -c` or `python -` would."""
    import importlib.machinery

    name = "<string>" if kind == "code" else "<stdin>"
    module.__loader__ = importlib.machinery.BuiltinImporter
    module.__dict__.update(__builtins__=__builtins__)
    if kind == "stdin":
        module.__dict__.update(__file__=name, __cached__=None)
    if kind == "code" and sys.version_info >= (3, 13):  # for source lines in tracebacks
        import linecache

        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return compile(text, name, "exec", dont_inherit=True)


def _module_code(module: types.ModuleType, name: str) -> types.CodeType:
    """Code of a module, or of a package's `__main__`; sets sys.argv[0] and the attributes of `module` as
    `python -m` would. Exits with Python's own message if there is none."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        sys.exit(f"{sys.executable}: Error while finding module specification for {name!r}: {error}")
    if spec is None or spec.loader is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    if spec.submodule_search_locations is not None:
        return _module_code(module, f"{name}.__main__")
    loader: Any = spec.loader
    module.__spec__, module.__loader__, module.__package__ = spec, loader, spec.parent
    module.__dict__.update(__file__=spec.origin, __cached__=spec.cached, __builtins__=__builtins__)
    sys.argv[0] = spec.origin or name
    code: types.CodeType = loader.get_code(spec.name)
    return code


# ---- how it ended


def _mark_reached_end() -> None:
    """Mark in the heartbeat page that the script has run to its end, whatever happens to the process from now
    on. Without a page nothing happens. Raises OSError."""
    page = os.environ.get("ROPETEAM_RANK_PAGE")
    if not page:
        return
    import mmap
    from dataclasses import replace

    from ropeteam_trainer.contract.local import PAGE_SIZE, Beat, read_beat, write_beat

    with open(page, "r+b") as file, mmap.mmap(file.fileno(), PAGE_SIZE) as view:
        heartbeat = read_beat(memoryview(view)) or Beat()
        sequence = int.from_bytes(view[:8], "little") + 1
        write_beat(memoryview(view), replace(heartbeat, reached_end=True), sequence)


def _report_error(error: BaseException, root: str) -> None:
    """Report to the agent why this rank exits. A failure is a line on stderr: the exception itself counts."""
    try:
        reporting.send(reporting.error_of(error, (root,)))
    except OSError as broken:
        name = type(error).__name__
        print(f"ropeteam: the {name} below is not reported to the agent: {broken}", file=sys.stderr)


def _without_shim_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without the outermost frames, those of this shim and of runpy; None if no other is left,
    as for a SyntaxError."""
    ours = (main.__code__.co_filename, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace
