"""What techniques need to know of a model and its optimizer.

units.py        layers that are sharded, recomputed or cut as one piece
naming.py       parameters keep their names through every technique
microbatch.py   gradient accumulation: batches that do not fit
eager.py        a model whose backward pass has happened when it returns its loss
stepping.py     something around an optimizer's step
"""
