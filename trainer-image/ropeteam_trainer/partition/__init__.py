"""Layout and cost of a strategy in a world. Pure.

layout.py        each rank's part of the work, or why a strategy cannot be used there; micro-batches
reductiontree.py order of additions under sync Exact, and the leaves of each replica
cost.py          bytes of memory and on the wire, messages, idle time
learningrate.py  factors of learning rates for large batches
answer.py        result of a script's dry run for `ropeteam plan`
"""
