"""Cost of sync Exact beside DDP: step time, buffers of gradients, bytes; and what recovery adds.

    python -m benchmarks.exact [--rounds 40] [--out FOLDER]      (40 take about ten minutes)

Two ranks, whose micro-batches are nodes of the tree (8 on 2), and three, whose are not (8 on 3), train five
copies of a model each in turns of 4 steps (train_turns.py): Exact, Exact as in a job that recovers in the
step, DDP by hand with the same micro-batches under no_sync(), wrap() with AllReduce, and DDP by hand without
any exchange. The order changes from round to round, and a ratio is that of two turns of one round. The
interval is the 95 % bootstrap interval of the median ratio.

The share of DDP's exchange is what its step takes longer than one without. Bytes are payload that all ranks
have sent in a step, counted by the kernel in a network namespace of the benchmark's own, beside the formula
of docs/techniques/exact.md. Buffers are counted in the product's own structures, and beside them all memory
of gradients in a step, as Python's garbage collector sees it. In the end all ranks must have equal weights,
whatever their number, with recovery or without.

Limits: gloo, loopback, one thread each, and with three ranks two of them share a core.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.ranks import netns
from lab.ranks.processes import FakeAgent, RankGroup

from benchmarks import results
from benchmarks.results import Row, Samples, print_rows, write
from benchmarks.wrap_overhead import interval
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.partition.reductiontree import equal_parts, maximal_nodes

SCRIPT = Path(__file__).parent / "train_turns.py"
MODELS = ("mlp", "char-GPT")
LEAVES, STEPS_A_TURN = 8, 4
STEP_GOALS = {2: 1.10, 3: 1.35}
"""Of Exact beside DDP by hand, by number of ranks."""
RECOVERY_GOAL, SHARE_GOAL, WITHIN = 1.01, 0.25, 0.05
PATIENCE = 1800.0
Figures = dict[str, Any]


def figures(folder: Path, model: str, ranks: int, rounds: int) -> Figures:
    """As train_turns.py prints them."""
    request = {"model": model, "leaves": LEAVES, "rounds": rounds, "steps": STEPS_A_TURN}
    with RankGroup(folder, ranks) as group:
        agent = FakeAgent(folder, ranks, CheckpointConfig(str(folder / "saved"), None), WorldId(1, 0, 1))
        try:
            ended = group.start(str(SCRIPT), json.dumps(request), agent=agent).wait(PATIENCE)
        finally:
            agent.close()
    if any(ended.codes):
        raise RuntimeError(f"{model}, {ranks} ranks\n" + "\n".join(ended.output))
    return ended.result


# ---- formulas


def bytes_as_computed(gradients: int, ranks: int) -> float:
    """Of a step of Exact, of all ranks together: with n ranks (n-1)/n of all gradients for each node that a
    rank has, and for the sum. gradients: bytes of all."""
    nodes = [len(maximal_nodes(part, LEAVES)) for part in equal_parts(LEAVES, ranks)]
    return sum((ranks - 1) / ranks * gradients * (count + 1) for count in nodes)


def most_buffers(ranks: int) -> int:
    """ceil(log2(leaves / ranks)) + 2."""
    return (-(-LEAVES // ranks) - 1).bit_length() + 2


# ---- figures


def ratio_row(name: str, samples: list[float], goal: float | None, beside: str) -> Row:
    low, high = interval(samples)
    middle = statistics.median(samples)
    p99 = sorted(samples)[max(0, -(-len(samples) * 99 // 100) - 1)]
    return Row(
        name, round(middle, 4), "x", len(samples), round(max(samples), 4), f"<= {goal:g}" if goal else "",
        middle <= goal if goal else None, f"{beside}; p99 {p99:.3f}; 95 % interval {low:.4f} to {high:.4f}",
    )  # fmt: skip


def of_times(name: str, ranks: int, seconds: Samples) -> tuple[list[Row], Samples]:
    def ratios(ours: str, other: str) -> list[float]:
        return [a / b for a, b in zip(seconds[ours], seconds[other], strict=True)]

    step = statistics.median(seconds["ddp"]) / STEPS_A_TURN
    found = {
        f"{name}: Exact / DDP": ratios("exact", "ddp"),
        f"{name}: Exact / AllReduce": ratios("exact", "all_reduce"),
        f"{name}: Exact with recovery / without": ratios("recovering", "exact"),
        f"{name}: share of the exchange in DDP's step": [1 - each for each in ratios("ddp alone", "ddp")],
    }
    goals = (STEP_GOALS[ranks], None, RECOVERY_GOAL, SHARE_GOAL)
    besides = (
        f"DDP by hand, {1000 * step:.1f} ms a step", "wrap() with AllReduce",
        "Exact that ends with a lost rank", "DDP by hand without an exchange",
    )  # fmt: skip
    rows = [
        ratio_row(each, samples, goal, beside)
        for (each, samples), goal, beside in zip(found.items(), goals, besides, strict=True)
    ]
    return rows, found


def of_memory(name: str, ranks: int, found: Figures) -> tuple[list[Row], Samples]:
    each = [rank["buffers"] for rank in found["ranks"]]
    sums = [float(rank["exact"]["sums"] + 1) for rank in each]
    held, more = ([float(rank[loop]["held"]) for rank in each] for loop in ("exact", "recovering"))
    goal = most_buffers(ranks)
    rows = [
        Row(f"{name}: buffers of gradients", statistics.median(sums), "x", ranks, max(sums), f"<= {goal}",
            max(sums) <= goal, "sums of micro-batches, and the gradients of the present one; by rank"),
        Row(f"{name}: all memory of gradients in a step", round(statistics.median(held), 3), "x", ranks,
            round(max(held), 3), "", None, "with the result and what others send; all gradients are 1"),
        Row(f"{name}: the same with recovery", round(statistics.median(more), 3), "x", ranks,
            round(max(more), 3), "", None, "without the copy of the last sums, which is 1 more"),
    ]  # fmt: skip
    return rows, {f"{name}: buffers of gradients": sums}


def of_bytes(name: str, ranks: int, found: Figures) -> list[Row]:
    sent = found["sent"]
    if sent["exact"] is None:
        return []
    computed = bytes_as_computed(found["gradients"], ranks)
    ratio, beside_ddp = sent["exact"] / computed, sent["exact"] / sent["ddp"]
    return [
        Row(f"{name}: bytes sent / as computed", round(ratio, 4), "x", STEPS_A_TURN, round(ratio, 4),
            f"{1 - WITHIN}..{1 + WITHIN}", abs(ratio - 1) <= WITHIN,
            f"{sent['exact']:.0f} B in a step of all ranks, {computed:.0f} B as computed"),
        Row(f"{name}: bytes sent, Exact / DDP", round(beside_ddp, 4), "x", STEPS_A_TURN, round(beside_ddp, 4),
            "", None, f"{sent['ddp']:.0f} B in a step of DDP"),
    ]  # fmt: skip


def of_weights(model: str, all_found: list[Figures]) -> Row:
    digests = [each for found in all_found for rank in found["ranks"] for each in rank["digests"].values()]
    differ = sum(each != digests[0] for each in digests)
    beside = "that of rank 0 of two; every rank of 2 and 3, with recovery and without"
    return Row(f"{model}: weights that differ", differ, "", len(digests), differ, "0", differ == 0, beside)


def show(measured: dict[tuple[str, int], Figures]) -> int:
    """Write results/, print the figures. Exit status 0: all goals are met."""
    table: list[Row] = []
    samples: Samples = {}
    for (model, ranks), found in measured.items():
        name = f"{model}, {ranks} ranks"
        for rows, values in (of_times(name, ranks, found["seconds"]), of_memory(name, ranks, found)):
            table += rows
            samples |= values
        table += of_bytes(name, ranks, found)
    for model in dict.fromkeys(model for model, _ in measured):
        table.append(of_weights(model, [found for (of, _), found in measured.items() if of == model]))
    write("exact", table, samples, "as of their rows")
    print("\n".join(f"{each.id}: {each.beside}" for each in table))
    return print_rows(table)


def main(arguments: list[str]) -> int:
    if not netns.is_alone():
        alone = netns.alone([sys.executable, "-m", "benchmarks.exact", *arguments])
        if alone is not None:
            os.execvp(alone[0], alone)
        print("no bytes on the wire: a network namespace needs root, unshare and ip", flush=True)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact")
    parser.add_argument("--rounds", type=int, default=40, help="pairs of turns of each model")
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    results.RESULTS = options.out
    work = Path(tempfile.mkdtemp(prefix="exact-"))
    measured: dict[tuple[str, int], Figures] = {}
    try:
        for model in MODELS:
            for ranks in STEP_GOALS:
                found = figures(work / f"{model}-{ranks}", model, ranks, options.rounds)
                measured[model, ranks] = found
                steps = {k: statistics.median(v) / STEPS_A_TURN * 1000 for k, v in found["seconds"].items()}
                texts = ", ".join(f"{name} {each:.1f}" for name, each in steps.items())
                print(f"{model}, {ranks} ranks, ms a step: {texts}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return show(measured)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
