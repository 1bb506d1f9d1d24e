"""Recipes: trainings on real data without downloads, as examples of the library and as its tests.

    char_gpt.py   a small character-level GPT, trained on English documentation
    digits.py     a small network that classifies handwritten digits
    common.py     shared functions

The same command, `python -m ropeteam_trainer.recipes.digits` for example, works alone, with `torchrun
--nproc-per-node N -m ...`, and in a TrainingJob.
"""
