"""Checkpoints of state that is sharded over ranks in any way, or not at all.

    manifest.py   what makes a folder a checkpoint (pure)
    restore.py    which one to go on from (pure)
    cadence.py    when to save
    kept.py       the objects that are saved: modules, optimizers, others
    names.py      names of tensors, which are what all layouts have in common
    optimizers.py their state, by names of parameters
    pieces.py     the part of a tensor that a rank holds
    snapshot.py   the copy that the training thread waits for
    writer.py     the thread that writes
    dcp.py        one save of all ranks, in the format of torch.distributed.checkpoint
    files.py      files that are hashed while they are written
    metadata.py   which tensor is where, read without trusting it
    reader.py     find, verify, load
    rng.py        random generators
    saving.py     all of it together, for one rank

The agent uses manifest.py only: nothing is imported here.
"""
