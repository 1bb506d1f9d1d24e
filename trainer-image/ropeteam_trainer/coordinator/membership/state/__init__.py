"""State of the coordinator, as frozen values.

state.py       the whole of it; events.py: the events that change it
desired.py     a received desired state, compared with the known one
slots.py       the pods that hold the slots, and the reports that count
ranks.py       the ranks of the members of the current world
world.py       one formed world: its plan and its progress
slotset.py     sets of slots as whole numbers
slotfacts.py   facts that may hold of a slot
slotindex.py   which facts are true of which slots, kept up to date
lateness.py    whether this coordinator keeps up, and what is delayed when it does not
"""
