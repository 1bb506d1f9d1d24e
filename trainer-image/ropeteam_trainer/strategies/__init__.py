"""Techniques of distributed training, one file each. wrap.py composes them according to spec.strategy.

ddp.py           ring.py                     full replicas, gradients averaged
exact/           the same, with the same bits for any number of ranks
fsdp.py          zero1.py                    sharded parameters, gradients, optimizer state
tensor.py        pipeline.py                 split layers, split model
local.py         compression.py              less communication
precision.py     activations.py              less memory
largebatch.py    learning rates of large batches
parameterserver/ ranks that keep the parameters, for workers that push gradients
model/           a model's units and names, its micro-batches, its optimizer's step
facade.py        the module that the loop calls

Example: 8 ranks, 10^9 float32 parameters in 1,000 matrices, Adam: what each rank holds and sends in a step.

    strategy                        GB held: weights + gradients + optimizer   GB sent
    none (all-reduce)               4   + 4   + 8                              7        2 (n-1)/n x 4P
    sharding: OptimizerState        4   + 4   + 1                              10.5     and (n-1)/n x 4P
    sharding: Gradients             0.5 + 0.5 + 1, 4 more while it computes    7
    sharding: Parameters            0.5 + 0.5 + 1, and one layer               10.5     3 (n-1)/n x 4P
    gradientCompression: PowerSGD   4   + 4   + 8, 4 left out, and its factors 0.056    rank 4
    sync: Local, everySteps 8       4   + 4   + 8                              0.875    on average
    parallelism: {pipeline: 8}      0.5 + 0.5 + 1                              only activations; with 16
                                    micro-batches a rank waits for 30 % of the step

Without activations, and DDP's buckets (4 more where DDP averages). `ropeteam plan` computes this for a real
model (partition/cost.py), except what compression leaves out; docs/techniques has what was measured.
"""
