"""What a checkpoint is made of.

stateful.py     modules, optimizers, and others
optimizers.py   their state, by names of parameters
pieces.py       the part of a tensor that a rank holds
rng.py          random generators
snapshot.py     the copy that the training thread waits for
"""
