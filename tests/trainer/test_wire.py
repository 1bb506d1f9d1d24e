"""Bytes that techniques send are those of their formulas: counted by the kernel.

Bytes of payload alone, which do not depend on how busy the machine is. Formulas: docstrings of
strategies/*.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from lab.ranks import netns, tiny

SIZE = tiny.Size(symbols=128, length=64, width=128, blocks=2)
SHAPES = [tuple(p.shape) for p in tiny.Tiny(SIZE).parameters()]
VALUES = sum(p.numel() for p in tiny.Tiny(SIZE).parameters())
RANKS = 3
RING = 2 * (RANKS - 1) / RANKS
"""How often an all-reduce sends what it reduces."""


def compressed(kind: str, **settings: Any) -> dict[str, Any]:
    return {"gradient_compression": {"type": kind, **settings}}


def low_rank(rank: int) -> float:
    """PowerSGD sends two narrow matrices for each matrix, and vectors as they are."""
    matrices = [shape for shape in SHAPES if len(shape) == 2]
    vectors = [shape for shape in SHAPES if len(shape) == 1]
    return 4 * sum(rank * (n + m) for n, m in matrices) + 4 * sum(n for (n,) in vectors)


def served(servers: int) -> dict[str, Any]:
    return {"sync": {"type": "ParameterServer", "parameter_server": {"servers": servers}}}


GRADIENTS: dict[str, tuple[dict[str, Any], float]] = {
    "all-reduce": ({}, RING * 4 * VALUES),
    "BFloat16": (compressed("BFloat16"), RING * 2 * VALUES),
    "PowerSGD": (compressed("PowerSGD", power_sgd={"rank": 16}), RING * low_rank(16)),
    "TopK": (compressed("TopK", top_k={"keep_per_mille": 50}), (RANKS - 1) * 12 * VALUES * 0.05),
}
SERVERS = (1, 2)


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> dict[str | int, float]:
    """Bytes per worker and step, by technique or number of servers. All worlds share one import of torch."""
    path = tmp_path_factory.mktemp("wire")
    worlds: dict[str | int, dict[str, Any]] = {}
    techniques = {name: strategy for name, (strategy, _) in GRADIENTS.items()}
    for key, strategy in (techniques | {number: served(number) for number in SERVERS}).items():
        servers, script = (key, "measured_served.py") if isinstance(key, int) else (0, "measured.py")
        request = path / f"request-{key}"
        request.write_text(
            json.dumps({"strategy": strategy, "size": vars(SIZE), "batch": RANKS, "warm": 4, "steps": 8})
        )
        worlds[key] = {"world": RANKS + servers, "script": script, "arguments": [str(request)]}
    (path / "worlds").write_text("\n".join(map(json.dumps, worlds.values())))
    command = netns.alone([sys.executable, "-m", "lab.ranks.netns", str(path)])
    if command is None:
        pytest.skip("BYTES ON THE WIRE ARE NOT TESTED: a network namespace needs root, unshare and ip")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return dict(zip(worlds, (json.loads(line)["sent"] for line in ended.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("technique", GRADIENTS)
def test_gradients_cost_the_bytes_of_the_formula(technique: str, sent: dict[str | int, float]) -> None:
    assert sent[technique] == pytest.approx(GRADIENTS[technique][1], rel=0.04)


@pytest.mark.parametrize("servers", SERVERS)
def test_parameter_servers_cost_a_gradient_and_the_weights(
    servers: int, sent: dict[str | int, float]
) -> None:
    assert sent[servers] == pytest.approx(2 * 4 * VALUES, rel=0.04)
