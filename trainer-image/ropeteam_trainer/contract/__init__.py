"""What operator, coordinator, agent and rank promise each other.

Everything that crosses a process border has its shape here and nowhere else:
  config.py       environment and settings handed to pods
  world.py        epochs, plans, checkpoints: the words of the protocol
  messages.py     agent -> coordinator (AgentReport) and back (Orders)
  grantchunks.py  grants too large for a frame
  desired.py      operator -> coordinator (Desired) and back (JobReport)
  local.py        rank <-> agent: socket messages and the heartbeat page
  strategy.py     how the work of one world is split
  codec.py        dataclasses <-> JSON, strict, with errors that name the field
  wire.py         authenticated frames on a TCP connection
  signing.py      authenticated requests and answers of the coordinator's HTTP port
  seals.py        signatures of what is written into checkpoint folders
  fence.py        how long a rank may live that nobody can reach
  preauth.py      places for peers that have proved nothing yet
  peererrors.py   how torch.distributed says that somebody else died

Standard library only, Python >= 3.10. Both directions of every link are *level-triggered*: each message is
the sender's whole truth, so a lost, doubled or late one costs nothing and a reconnect needs no replay. A peer
accepts OLDEST to VERSION.
"""

VERSION, OLDEST = 3, 1
"""Older peers refuse what claims to be of a later version, so a message claims no more than its receiver is
known to take."""
LEASES = 2
"""Since then a lease is an empty frame, its answer 24 bytes (messages.py), and an agent is told its own part
of a plan (grantchunks.py). Nothing newer is between agents and coordinators: no agent claims more."""
SIGNED = 3
"""Since then what operators and coordinators say is signed (signing.py), and not shown a bearer."""
