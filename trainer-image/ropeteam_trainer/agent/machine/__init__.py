"""The agent's state machine: state and event in, next state and effects out. Pure.

step.py              the rules; checkpointrules.py: those on checkpoints
keepingrules.py      rules on ranks that live on when a world ends
events.py            events; state.py: the state; effects.py: effects
apply.py             the facts of an event; childreports.py: those of reports of child processes
hang.py              hang detection; stacks.py: the frame in which a rank hangs
environment.py       the environment of a rank
report.py            the report to the coordinator; metrics.py: metrics for Prometheus

Example: slot 0 with one rank, fenceSeconds 120, no checkpoints.

    second    event                             effects                     why
    1000      orders: plan 1.0.1                StartRanks 1.0.1
    1030      orders: no plan                   KillRanks 1.0.1             only ranks of the plan may live
    1030.1    orders: plan 1.0.2                                            the old rank still lives
    1030.4    rank 0 of 1.0.1 has exited        StartRanks 1.0.2
    1040      answer to a report of just now                                the fence is counted from here
    1159      no answer since                                               119 s
    1160      no answer since                   KillRanks 1.0.2             120 s: another pod may train now
"""
