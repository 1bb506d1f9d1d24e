"""What techniques send is what their formulas say: bytes counted by the kernel.

The bytes also hold headers and acknowledgements of TCP. Formulas: docstrings of strategies/*.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.trainer import tiny, wire

SIZE = tiny.Size(symbols=128, length=64, width=128, blocks=2)
SHAPES = [tuple(p.shape) for p in tiny.Tiny(SIZE).parameters()]
VALUES = sum(p.numel() for p in tiny.Tiny(SIZE).parameters())
RANKS = 3
RING = 2 * (RANKS - 1) / RANKS
"""How often an all-reduce sends what it reduces."""


def sent(path: Path, strategy: dict[str, Any], servers: int = 0) -> float:
    """Bytes per worker and step."""
    (path / "request").write_text(
        json.dumps({"strategy": strategy, "size": vars(SIZE), "batch": RANKS, "warm": 4, "steps": 8})
    )
    script = "measured_served.py" if servers else "measured.py"
    words = ("tests.trainer.wire", str(path), str(RANKS + servers), script, str(path / "request"))
    command = wire.alone([sys.executable, "-m", *words])
    if command is None:
        pytest.skip("BYTES ON THE WIRE ARE NOT TESTED: a network namespace needs root, unshare and ip")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = next(line for line in ended.stdout.splitlines() if line.startswith("RESULT "))
    value: float = json.loads(found.removeprefix("RESULT "))["sent"]
    return value


def compressed(kind: str, **settings: Any) -> dict[str, Any]:
    return {"gradient_compression": {"type": kind, **settings}}


def low_rank(rank: int) -> float:
    """PowerSGD sends two narrow matrices for each matrix, and vectors as they are."""
    matrices = [shape for shape in SHAPES if len(shape) == 2]
    vectors = [shape for shape in SHAPES if len(shape) == 1]
    return 4 * sum(rank * (n + m) for n, m in matrices) + 4 * sum(n for (n,) in vectors)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({}, RING * 4 * VALUES),
        (compressed("BFloat16"), RING * 2 * VALUES),
        (compressed("PowerSGD", power_sgd={"rank": 16}), RING * low_rank(16)),
        (compressed("TopK", top_k={"keep_per_mille": 50}), (RANKS - 1) * 12 * VALUES * 0.05),
    ],
    ids=["all-reduce", "BFloat16", "PowerSGD", "TopK"],
)
def test_gradients_cost_the_bytes_that_the_formula_says(
    strategy: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    assert sent(tmp_path, strategy) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("servers", [1, 2])
def test_parameter_servers_cost_a_gradient_and_the_weights(servers: int, tmp_path: Path) -> None:
    served = {"sync": {"type": "ParameterServer", "parameter_server": {"servers": servers}}}
    assert sent(tmp_path, served, servers) == pytest.approx(2 * 4 * VALUES, rel=0.04)
