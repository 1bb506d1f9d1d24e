"""Run benchmarks, each in a process of its own, one after the other.

    python -m benchmarks [NAME ...]      these; without a name all that need nothing but this machine
    python -m benchmarks --list          what there is, what it needs, how long it takes

Exit status 1: a benchmark failed, or missed a goal. Figures of a machine that does other work meanwhile say
little: results/*.json has its load.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Benchmark:
    """`name`: of its result."""

    name: str
    minutes: int
    needs: str = ""
    command: tuple[str, ...] = ()
    """Module and arguments, where the module's name is not the result's."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return self.command[0] if self.command else self.name


NODES = "what `make e2e` needs"
PROGRAMS = "the programs of `make e2e`"
HISTORY = "the commit that it is compared with"
GPU = "a GPU"
BENCHMARKS = (
    Benchmark("child_start", 1),
    Benchmark("first_output", 5),
    Benchmark("failed_jobs", 5),
    Benchmark("gang_restart", 15),
    Benchmark("recovery", 60),
    Benchmark("joins", 8),
    Benchmark("flat", 12),
    Benchmark("exact", 10),
    Benchmark("chaos", 35),
    Benchmark("lost_pods", 7),
    Benchmark("leaks", 8),
    Benchmark("half", 35),
    Benchmark("balance", 15),
    Benchmark("parameterserver", 5),
    Benchmark("pipelines", 5),
    Benchmark("large_batch", 3),
    Benchmark("memory", 2),
    Benchmark("wrap_overhead", 4),
    Benchmark("techniques", 10),
    Benchmark("coordinator", 2),
    Benchmark("decisions", 1),
    Benchmark("idle_connections", 20),
    Benchmark("defences", 25, HISTORY),
    Benchmark("gang_restart_gpu", 15, GPU, ("gang_restart",), {"DEVICE": "cuda"}),
    Benchmark("cluster_recovery", 15, NODES),
    Benchmark("cluster_kills", 20, NODES),
    Benchmark("tenants", 60, NODES),
    Benchmark("scale_local", 1, PROGRAMS, ("scale", "local")),
    Benchmark("scale_real", 15, PROGRAMS, ("scale", "real")),
    Benchmark("scale_one", 3, PROGRAMS, ("scale", "one")),
)


def main(arguments: list[str]) -> int:
    if arguments == ["--list"]:
        for each in BENCHMARKS:
            print(f"{each.name:20} {each.minutes:3} min  {each.needs}".rstrip())
        return 0
    known = {each.name: each for each in BENCHMARKS}
    if unknown := [name for name in arguments if name not in known]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    chosen = [known[name] for name in arguments] or [each for each in BENCHMARKS if not each.needs]
    failed = [each.name for each in chosen if run(each)]
    print(f"failed, or missed a goal: {', '.join(failed)}" if failed else "all goals are met")
    return 1 if failed else 0


def run(benchmark: Benchmark) -> int:
    """The exit status."""
    print(f"=== {benchmark.name}: about {benchmark.minutes} min", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{benchmark.module}", *benchmark.command[1:]]
    return subprocess.run(command, env={**os.environ, **benchmark.environment}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
