"""Layout and cost of a strategy in a world. Pure.

layout.py   each rank's part of the work, or why a strategy cannot be used there
cost.py     bytes of memory and on the wire, messages, idle time
answer.py   a script's report to `ropeteam plan` before it would train
"""
