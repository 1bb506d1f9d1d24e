"""Trainings on real data that need no download, as examples of the library and as its proof.

    python -m ropeteam_trainer.recipes.char_gpt      a small GPT learns English documentation, letter by
    letter python -m ropeteam_trainer.recipes.digits        a small network reads handwritten digits

The same command works alone, with `torchrun --nproc-per-node N -m ...`, and in a TrainingJob.
"""
