"""Trainings on real data that need no download, as examples of the library and as its proof.

    char_gpt.py   a small GPT learns English documentation, letter by letter
    digits.py     a small network reads handwritten digits
    common.py     what they share

The same command, `python -m ropeteam_trainer.recipes.digits` for example, works alone, with `torchrun
--nproc-per-node N -m ...`, and in a TrainingJob.
"""
