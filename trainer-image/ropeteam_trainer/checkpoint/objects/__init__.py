"""Objects in a checkpoint.

stateful.py     modules, optimizers, and others
optimizers.py   their state, by names of parameters
tensorshard.py  the part of a tensor that a rank holds
rng.py          random generators
snapshot.py     copy of the state, for which the training thread waits
"""
