"""Techniques of distributed training, one file each. wrap.py composes them according to spec.strategy.

ddp.py           composable_ddp.py ring.py   full replicas, gradients averaged
fsdp.py          zero1.py                    sharded parameters, gradients, optimizer state
tensor.py        pipeline.py                 split layers, split model
local.py         compression.py              less communication
precision.py     activations.py              less memory
largebatch.py    learning rates of large batches
parameterserver/ ranks that keep the parameters, for workers that push gradients
model/           a model's units and names, its micro-batches, its optimizer's step
facade.py        the module that the loop calls
"""
