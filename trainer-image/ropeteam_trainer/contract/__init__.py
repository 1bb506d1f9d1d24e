"""Protocol between operator, coordinator, agent and rank.

What they send each other is defined here, except messages of ranks to ranks (rank/exchange.py) and to
parameter servers (strategies/parameterserver/requests.py), which no other process reads:
  config.py       environment and settings handed to pods
  world.py        numbers of worlds, plans, checkpoints: the types that messages share
  messages.py     agent -> coordinator (AgentReport) and back (Orders)
  grantchunks.py  grants too large for a frame
  desired.py      operator -> coordinator (Desired) and back (JobReport)
  featurelevel.py how much of the library a script uses
  local.py        rank <-> agent: socket messages and the heartbeat page
  strategy.py     how the work of one world is split
  codec.py        dataclasses <-> JSON, strict, with errors that name the field
  errors.py       the roots of all error classes, and the tree of them
  wire.py         authenticated frames on a TCP connection
  signing.py      authenticated requests to the coordinator's HTTP port, and its responses
  seals.py        signatures of the files that are written into checkpoint folders
  fence.py        how long an unreachable rank may live
  preauth.py      limit on connections that have not authenticated yet
  peererrors.py   error texts of torch.distributed that mean that a peer has died

Standard library only, Python >= 3.10. Both directions of every link are *level-triggered*: each message
carries the sender's whole state, so a lost, duplicate or late one costs nothing and a reconnect needs no
replay. A peer accepts OLDEST to VERSION.
"""

VERSION, OLDEST = 3, 1
"""Older peers refuse a message that claims a later version, so a message claims no more than its receiver is
known to accept."""
LEASES = 2
"""From this version on a lease is an empty frame, its answer 24 bytes (messages.py), the files of a grant
come in parts (grantchunks.py), and an agent receives its own part of a plan (world.py). Nothing newer exists
between agents and coordinators: no agent claims more."""
SIGNED = 3
"""From this version on messages between operators and coordinators are signed (signing.py) and carry no
bearer token."""
