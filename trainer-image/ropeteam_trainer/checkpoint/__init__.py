"""Checkpoints of state that is sharded over ranks in any way, or not at all.

    saving.py      all of it together, for one rank
    decisions/     what makes a folder a checkpoint, which are committed, which one to restore (pure)
    objects/       the saved objects: modules, optimizers, random generators, others
    format/        parsers of the files, which do not trust them
    cadence.py     when to save
    writer.py      the thread that writes
    dcp.py         one save of all ranks, in the format of torch.distributed.checkpoint
    files.py       files that are hashed while they are written
    reader.py      find, verify, load
    deletion.py    deletion of one checkpoint
    agreement.py   agreement of all ranks on the checkpoint to restore
    export.py      a checkpoint as one file of plain PyTorch

The agent uses decisions/ and deletion.py only: nothing is imported here.
"""
