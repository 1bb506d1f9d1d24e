"""Random generators of a rank: Python's, NumPy's (if imported), torch's (and CUDA's, if used).

Their states are plain values that `torch.load(weights_only=True)` accepts. A rank that has no saved state
(the world has grown) is seeded from the step and its rank: different from all others, and the same in every
retry.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

GeneratorStates = dict[str, Any]


def capture() -> GeneratorStates:
    """States of the generators of this process. CUDA's: of the current device."""
    state: GeneratorStates = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, gauss = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), position, has_gauss, gauss)
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def put_back(state: GeneratorStates) -> None:
    """Set the generators to saved states. CUDA's are ignored where there is no GPU. Raises ValueError for
    states of an incompatible Python, NumPy (or none) or torch, and RuntimeError for CUDA's; some generators
    may be set then."""
    try:
        _put_back_on_cpu(state)
    except (ImportError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"random generators cannot be restored ({error}): were they saved under another Python, NumPy or "
            "torch? Resume in that image, or delete the checkpoint's folder to skip it"
        ) from None
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _put_back_on_cpu(state: GeneratorStates) -> None:
    """Set the generators of Python, torch and, if it has a state, NumPy. All that this raises for a state
    that does not fit is caught in put_back(); ImportError: there is a state, and no NumPy."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy  # so that its generator has the saved state if the script imports it later

        numpy.random.set_state(state["numpy"])


def reseed(step: int, rank: int) -> None:
    """Seed the generators of a rank without a saved state."""
    seed = random.Random(f"{step}/{rank}").getrandbits(32)
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
