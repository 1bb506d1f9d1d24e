"""Imports of ranks in tests, done once: by the server that they are forked from.

As in the agent's zygote, what lives now is kept out of garbage collections, which would copy its pages into
each rank.
"""

from __future__ import annotations

import gc

import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel  # noqa: F401

import ropeteam_trainer.job
import ropeteam_trainer.strategies.wrap  # noqa: F401

gc.freeze()
