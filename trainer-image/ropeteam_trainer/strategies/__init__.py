"""Techniques of distributed training, one file each. wrap.py puts them together as spec.strategy says.

ddp.py             ring.py                whole copies, gradients averaged
fsdp.py            composable_ddp.py zero1.py parts of parameters, gradients, optimizer state
tensor.py          pipeline.py             parts of layers, parts of the model
local.py           compression.py           less communication
precision.py       activations.py       less memory
largebatch.py      batches that are large
parameterserver/   ranks that keep the parameters, for workers that push gradients
model/             a model's units and names, its micro-batches, its optimizer's step
facade.py          the loop of the script stays as it is
"""
