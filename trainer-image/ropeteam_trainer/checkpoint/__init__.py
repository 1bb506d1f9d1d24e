"""Checkpoints of replicated state.

    manifest.py   what makes a folder a checkpoint (pure)
    restore.py    which one to go on from (pure)
    cadence.py    when to save
    snapshot.py   the copy that the training thread waits for
    writer.py     files, in the background
    reader.py     find, verify, load
    rng.py        random generators
    saving.py     all of it together, for one rank

The agent uses manifest.py only: nothing is imported here.
"""
