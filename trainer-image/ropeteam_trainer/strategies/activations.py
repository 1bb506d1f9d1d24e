"""Activation checkpointing: drop a layer's activations, and recompute them in the backward pass.

Full keeps only each unit's input. Selective keeps the results of matrix products too, which cost most to
compute, and drops the rest.
Use it when activations, not weights, fill the memory: long sequences, large micro-batches.
Cost: Full one more forward pass (about a third more time), Selective a few per cent; no communication.
Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016 (torch.utils.checkpoint).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ropeteam_trainer.contract.strategy import ActivationCheckpointing
from ropeteam_trainer.strategies.model.units import units_of

_MATRIX_PRODUCTS = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.convolution.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
    }
)


def checkpoint_activations(model: nn.Module, kind: ActivationCheckpointing) -> None:
    """Checkpoint each unit of the model in place: its forward() is replaced, so parameters keep their names.
    A model without a list of layers has no units; then each of its children is one. kind: not NONE.
    """
    options: dict[str, Any] = {"use_reentrant": False}
    if kind is ActivationCheckpointing.SELECTIVE:
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
    for unit in units_of(model) or model.children():
        unit.forward = functools.partial(checkpoint, unit.forward, **options)


def _policy(_: Any, op: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    """Policy of Selective for one operator: keep the results of matrix products."""
    return CheckpointPolicy.MUST_SAVE if op in _MATRIX_PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE
