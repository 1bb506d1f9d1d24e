"""Ways in which a job fails.

Most ranks do not import torch: it is the end that is looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from lab.local.cluster import Cluster
from lab.local.jobs import job

SECOND = """
import os, pathlib, time
second = os.environ['RANK'] == '1'
print('rank', os.environ['RANK'], 'begins')
here = pathlib.Path(__file__).parent
(here / f"begun-{os.environ['RANK']}").touch()
while len(list(here.glob('begun-*'))) < 2:
    time.sleep(0.02)
"""
"""Each waits for the other: a rank that is ended before it prints leaves no log."""
WAITS = "time.sleep(0 if second else 3600)\n"
NO_RETRY: dict[str, Any] = {"recovery": {"maxFailures": 0}}


class Kind(NamedTuple):
    script: str = ""
    reason: str = "FailureBudgetSpent"
    spec: dict[str, Any] = NO_RETRY
    command: tuple[str, ...] = ("python", "{script}")
    begins: bool = True
    """Whether its ranks start and their lines are in the logs."""
    later: dict[str, Any] | None = None
    """Change of its spec once they have."""


def recovery(**fields: Any) -> dict[str, Any]:
    return {"recovery": {"maxFailures": 0, **fields}}


ENDS = {
    "exception": "raise ValueError('no')",
    "exception-of-one": WAITS + "raise ValueError('no')",
    "exit-code": "raise SystemExit(3)",
    "exit-code-of-one": WAITS + "raise SystemExit(3)",
    "exit-at-once": "os._exit(9)",
    "killed": WAITS + "os.kill(os.getpid(), 9)",
    "aborted": WAITS + "os.abort()",
    "segmentation-fault": WAITS + "os.kill(os.getpid(), 11)",
    "terminated": WAITS + "os.kill(os.getpid(), 15)",
    "recursion": "def f(): f()\nf()",
    "memory": "raise MemoryError",
    "interrupt": WAITS + "raise KeyboardInterrupt",
    "loud": "print('x' * 1000, *range(100_000), sep='\\n')\nraise ValueError('no')",
    "no-text": "os.write(1, bytes(range(128, 256)) + b'\\n')\nraise ValueError('\\udcff')",
    "unfinished-line": "os.write(1, b'no newline')\nos._exit(1)",
    "child": "import subprocess\nsubprocess.run(['sh', '-c', 'exit 7'], check=True)",
    "orphan": "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\nos._exit(1)",
    "thread": "import threading\nthreading.Thread(target=lambda: os._exit(4)).start()\n" + "while True: pass",
}
KINDS = {
    **{name: Kind(SECOND + script) for name, script in ENDS.items()},
    "repeated": Kind(SECOND + "raise ValueError('no')", "RepeatedError", {}),
    "rule": Kind(
        SECOND + WAITS + "raise SystemExit(42)",
        "ExitCodeRule",
        {"recovery": {"exitCodes": [{"codes": [42], "action": "Fail"}]}},
    ),
    "import": Kind(SECOND + "import no_such_module", "ScriptInvalid", {}),
    "syntax": Kind("def f(:", "ScriptInvalid", {}, begins=False),
    "deadline": Kind(SECOND + "second = False\n" + WAITS, "DeadlineExceeded", {"activeDeadlineSeconds": 3600},
                     later={"activeDeadlineSeconds": 1}),
    "late-start": Kind(SECOND + "import ropeteam_trainer\nropeteam_trainer.init()\nsecond = False\n" + WAITS,
                       spec={**recovery(startSeconds=15), "env": []}),
    "shell": Kind("echo rank $RANK begins; cd $1; touch begun-$RANK\n"
                  "while ! test -e begun-0 -a -e begun-1; do sleep 0.1; done; exit 5",
                  command=("bash", "{script}", "{folder}")),
    "command": Kind(reason="CommandNotFound", spec={}, command=("pyton", "train.py"), begins=False),
    "script": Kind(reason="CommandNotFound", spec={}, command=("python", "no-such-train.py"), begins=False),
    "flag": Kind(reason="LauncherRefused", spec={}, command=("torchrun", "--nproc-per-rank", "1", "t.py"),
                 begins=False),
    "interpreter": Kind(reason="InterpreterWithoutTorch", spec={"env": []},
                        command=("/usr/bin/python3", "-I", "{script}"), begins=False),
    "volume": Kind(SECOND, "CheckpointNotWritable", {"checkpoint": {"volume": "{file}"}}, begins=False),
    "all-pods-go": Kind(SECOND + "raise ValueError('no')", spec={**NO_RETRY, "cleanPodPolicy": "All"}),
    "no-pod-goes": Kind(SECOND + "raise ValueError('no')", spec={**NO_RETRY, "cleanPodPolicy": "None"}),
}  # fmt: skip


def made(name: str, kind: Kind, folder: Path) -> dict[str, Any]:
    script, file = folder / "script.py", folder / "a file"
    script.write_text(kind.script)
    file.touch()
    names = {"{script}": str(script), "{folder}": str(folder)}
    made = job(name, [names.get(argument, argument) for argument in kind.command])
    made["spec"] |= kind.spec
    if "checkpoint" in kind.spec:
        made["spec"]["checkpoint"] = {"volume": {"hostPath": {"path": str(file)}}}
    return made


def holding(cluster: Cluster, name: str) -> list[str]:
    """Pods of it that have not ended."""
    over = ("Failed", "Succeeded")
    pods = cluster.pods(name, None)
    return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") not in over]
