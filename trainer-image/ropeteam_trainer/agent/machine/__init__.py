"""The agent's state machine: state and event in, next state and effects out. Pure.

step.py          the rules
state.py         state and events; effects.py: effects
events.py        the facts of an event; childreports.py: those of reports of child processes
hang.py          hang detection; stacks.py: the frame in which a rank hangs
environment.py   the environment of a rank
report.py        the report to the coordinator; metrics.py: metrics for Prometheus
"""
