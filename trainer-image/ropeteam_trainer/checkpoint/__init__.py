"""Checkpoints of state that is sharded over ranks in any way, or not at all.

    saving.py      all of it together, for one rank; disabled.py: for a rank that saves nothing
    decisions/     what makes a folder a checkpoint, which are committed, which one to restore (pure)
    objects/       the saved objects: modules, optimizers, random generators, others
    format/        parsers of the files, which do not trust them
    cadence.py     when to save
    writer.py      the thread that writes
    dcp.py         one save of all ranks, in the format of torch.distributed.checkpoint
    files.py       files that are hashed while they are written
    reader.py      find, verify, load
    handover.py    the state without a volume, from one rank to another
    directory.py   location of the checkpoint directory
    deletion.py    deletion of one checkpoint
    agreement.py   agreement of all ranks on the checkpoint to restore
    export.py      a checkpoint as one file of plain PyTorch

The agent uses decisions/, directory.py and deletion.py only, which need no torch: nothing is imported here.

Example: 4 ranks shard a model of 1,000 parameters under AdamW, everySteps is 100, keep is 3.

    step 500   each rank copies its 250 parameters and their 500 numbers of AdamW, and trains on
               a thread writes __<rank>_0.distcp and rank-<rank>.pt; of rank 0 also .metadata and state.pt
               4 ranks report 10 files -> the coordinator grants the commit -> rank 0's agent writes
               manifest.json, then the journal's entry: now step 500 counts
               step 200 is pruned once status names step 500
    a fault, and the job comes back with 2 ranks
               rank 0 chooses step 500; each rank verifies a part of the 10 files, about the same bytes
               rank 1 finds a wrong hash in __3_0.distcp -> both fall back to step 400, and verify that
               each loads its 500 parameters from the files of the 4 ranks, and training continues at step 401
"""
