"""The first process of a worker pod: starts, watches and reaps ranks; standard library only, never torch.

Pure: state.py, learn.py, machine.py, report.py, hang.py (what to do). What the command means: ../launchers.
I/O: main.py (the loop) and what it drives: link, ranks, zygote, keeper, output, pages, preflight.
In the job's interpreter: rankmain.py (runs the user's script), hooks.py (adds to what it imports), zygote.py
(has torch imported, forks).
"""
