"""Factors of the script's learning rate for large batches (strategies/largebatch.py applies them). Pure."""

from __future__ import annotations

from ropeteam_trainer.contract.strategy import LearningRate, Scaling


def learning_rate_factor(rate: LearningRate, global_batch: int | None) -> float:
    """Factor of the script's learning rate for a global batch. layout.py has refused a scaling
    without the two batch sizes."""
    if rate.scaling is Scaling.NONE:
        return 1.0
    assert rate.base_batch is not None
    assert global_batch is not None
    ratio = global_batch / rate.base_batch
    return ratio if rate.scaling is Scaling.LINEAR else float(ratio**0.5)


def warmup_factor(rate: LearningRate, steps_done: int) -> float:
    """Fraction of the full rate for the step after `steps_done` steps: linear, 1 after `warmup_steps`."""
    return min(1.0, (steps_done + 1) / (rate.warmup_steps + 1))
