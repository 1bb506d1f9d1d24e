"""Bytes that ranks send each other, counted by the kernel.

    python -m lab.ranks.netns FOLDER    a RankGroup for each line of FOLDER/worlds, one after the other

A line is JSON: {world, script, arguments}. For each the result of its rank 0 is printed, as a line of JSON.

In a network namespace of their own nobody else talks, so the bytes of its loopback device are those of the
ranks. Their headers do not count, nor packets that only acknowledge, of which a busy machine sends more: what
is left is payload. A namespace needs root, or a kernel that gives users their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ropeteam_trainer.contract import config

_HEADERS = 20 + 20 + 12
"""Bytes of each packet that are no payload: IPv4, TCP, and TCP's timestamps. The device counts no frames."""
_BEGIN = 'ip link set lo up && exec "$@"'


def alone(command: Sequence[str]) -> list[str] | None:
    """`command`, so that it runs in a network namespace of its own. None: this machine does not allow it."""
    for options in ([], ["--map-root-user"]):
        prefix = ["unshare", "--net", *options, "sh", "-c", _BEGIN, "sh"]
        try:
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
                return [*prefix, *command]
        except FileNotFoundError:
            return None
    return None


def is_alone() -> bool:
    """Whether this process is in such a namespace: it has no other device."""
    return list(_sent_by_device()) == ["lo"]


def sent() -> int:
    """Bytes of payload that all processes of this namespace have sent over its loopback device until now."""
    size, packets = _sent_by_device()["lo"]
    return size - packets * _HEADERS


def _sent_by_device() -> dict[str, tuple[int, int]]:
    """Bytes and packets."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]  # below its heading
    counts = {name.strip(): counts.split() for name, counts in (line.split(":") for line in lines)}
    return {name: (int(count[8]), int(count[9])) for name, count in counts.items()}


def main() -> None:
    from lab.ranks.processes import RankGroup

    folder = Path(sys.argv[1])
    for number, line in enumerate((folder / "worlds").read_text().splitlines()):
        wanted = json.loads(line)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            group = RankGroup(folder / str(number), wanted["world"])
            group.environment[config.MEMORY] = memory  # of parameter servers
            ended = group.run(wanted["script"], *wanted["arguments"])
        if any(ended.codes):
            sys.exit("\n".join(ended.output))
        print(json.dumps(ended.result))


if __name__ == "__main__":
    main()
