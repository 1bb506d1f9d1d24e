"""Common code of techniques for a model and its optimizer.

units.py        layers that are sharded, recomputed or split as one unit
naming.py       parameters keep their names through every technique
microbatch.py   gradient accumulation: batches that do not fit
eager.py        a model that runs its backward pass before it returns its loss
stepping.py     hooks around an optimizer's step
"""
