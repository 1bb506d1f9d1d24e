"""A process that reads through a ShardCache. Driven by lines on its input, one answer each on its output.

cached.py DIRECTORY MAX_BYTES [--log FILE] [--stop-after BYTES] [--file-limit BYTES]

open PATH [VERSION]   open and hold it; answers with its length and the sum of its bytes
name PATH             the name that path() gives, and whether there is a file
close                 close all that is held
--log: append a line for each copy that begins. --stop-after: wait for ever when so much of a copy is written.
--file-limit: no file may grow beyond, as on a full disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path
from typing import BinaryIO

from ropeteam_trainer.data import cache as module
from ropeteam_trainer.data.cache import ShardCache

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("max_bytes", type=int)
parser.add_argument("--log")
parser.add_argument("--stop-after", type=int)
parser.add_argument("--file-limit", type=int)
options = parser.parse_args()


class Watched(ShardCache):
    def _free_space(self, size: int, part: BinaryIO) -> None:
        if options.log:
            with open(options.log, "a") as log:
                log.write(f"{os.getpid()}\n")
            time.sleep(0.2)  # that others come, too
        super()._free_space(size, part)
        if options.stop_after is not None:
            part.write(b"x" * min(options.stop_after, size))
            part.flush()
            print("stopped", flush=True)
            time.sleep(1000)


if options.file_limit is not None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_limit, options.file_limit))
module._CHUNK_BYTES = 1000
cache = Watched(options.directory, options.max_bytes)
held: list[BinaryIO] = []
print("ready", flush=True)
while True:
    try:
        command, *arguments = input().split()
    except EOFError:
        break
    if command == "open":
        try:
            held.append(cache.open(*arguments))
            content = held[-1].read()
            print(len(content), sum(content), flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)
    elif command == "name":
        with cache.path(*arguments) as name:
            print(name.parent == Path(options.directory), name.exists(), flush=True)
    else:
        while held:
            held.pop().close()
        print("closed", flush=True)
