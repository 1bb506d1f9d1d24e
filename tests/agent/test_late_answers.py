"""A zygote that forks and does not say so: no rank lives twice."""

from __future__ import annotations

from pathlib import Path

from lab.waiting import wait_until_async
from tests.agent.harness import a_plan

from ropeteam_trainer.contract.config import Start

TORCH = {
    "__init__.py": "class cuda:\n    is_initialized = staticmethod(lambda: False)\n"
    "class default_generator:\n    seed = staticmethod(lambda: 0)\n"
    "def set_num_threads(n): pass\n",
    "_dynamo.py": "",
    "distributed.py": "import os, sys\n"
    "zygote = sys.modules['ropeteam_trainer.agent.script.zygote']\n"
    "send = zygote.send\n"
    "def send_or_die(peer, message):\n"
    "    if 'pid' in message: os.kill(os.getpid(), 9)\n"
    "    send(peer, message)\n"
    "zygote.send = send_or_die\n",
}
"""As far as a zygote sees it. This one dies between a fork and its answer."""
SLEEP = "import os, time\nprint('pid', os.getpid(), flush=True)\nwhile True: time.sleep(0.1)\n"


async def test_a_rank_whose_fork_was_not_answered_lives_once(make_pod, coordinator):
    pod = make_pod(processes=1, start=Start.FORK)
    stub = pod.folder / "stub" / "torch"
    stub.mkdir(parents=True)
    for name, text in TORCH.items():
        (stub / name).write_text(text)
    (pod.folder / "x.py").write_text(SLEEP)
    pod.start("python3", "x.py", ROPETEAM_STORE="", PYTHONPATH=str(stub.parent))
    await wait_until_async(pod.text, lambda: "ranks can be forked from now on" in pod.text())
    coordinator.order(plan=a_plan(processes=1))
    await wait_until_async(pod.text, lambda: "by exec, because it cannot be forked" in pod.text())
    await coordinator.wait_for(lambda r: r.plan and r.ranks)
    await wait_until_async(pod.text, lambda: "] pid " in pod.text() and len(living(pod.folder)) == 1)


def living(folder: Path) -> list[int]:
    """Ranks: whatever runs the script, or was forked to do so."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "cmdline").read_bytes()
                if str(folder).encode() in fields and (b"rank.py" in fields or b"zygote.py" in fields):
                    found.append(int(each.name))
            except OSError:
                continue
    return found
