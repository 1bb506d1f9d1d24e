"""What an agent does: state and event in, next state and effects out. Pure.

step.py          the rules
state.py         what is known, and what can happen; effects.py: what can be done
events.py        the facts of an event; childreports.py: of what processes have told
hang.py          is a rank stuck? stacks.py: where it stands
environment.py   the environment of a rank
report.py        what the coordinator is told; metrics.py: what Prometheus is told
"""
