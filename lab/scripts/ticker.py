"""A training script without torch: ranks count steps, and do on command what real ones do by accident.

    ticker.py FOLDER [STEPS] [SECONDS_PER_STEP]

Appends `{"rank", "step", "pid", "world", "t"}` per step to FOLDER/rank-<rank>.jsonl. A file
FOLDER/do-<rank> holds one command, taken once: raise TEXT | exit N | end | ignore-term | orphan.
Starts from step 0 each time.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def execute(command: str) -> None:
    verb, _, rest = command.strip().partition(" ")
    if verb == "raise":
        raise ValueError(rest)
    if verb == "exit":
        sys.exit(int(rest))
    if verb == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if (
        verb == "orphan"
    ):  # outlives its parent, in a session of its own, as a stubborn DataLoader worker would
        subprocess.Popen(["sleep", "1000"], start_new_session=True)


def main() -> None:
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    world = os.environ.get("ROPETEAM_WORLD") or os.environ["ROPETEAM_EPOCH"]  # in pods of an older release
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10**9
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.02
    orders = folder / f"do-{rank}"
    with (folder / f"rank-{rank}.jsonl").open("a", buffering=1) as log:
        for step in range(1, steps + 1):
            line = {
                "rank": int(rank),
                "step": step,
                "pid": os.getpid(),
                "world": world,
                "t": time.time(),
            }
            log.write(json.dumps(line) + "\n")
            if orders.exists():
                command = orders.read_text()
                if not command.startswith("always "):
                    orders.unlink()
                if command == "end":
                    break
                execute(command.removeprefix("always "))
            time.sleep(pause)
    print(f"rank {rank} is done")


if __name__ == "__main__":
    main()
