"""State of the coordinator, as frozen values.

state.py       the whole of it, and the events that change it
world.py       one formed world: its plan and its progress
slotset.py     sets of slots as whole numbers
slotfacts.py   facts that may hold of a slot
slotindex.py   which facts are true of which slots, kept up to date
lateness.py    whether this coordinator keeps up, and what is delayed when it does not
"""
