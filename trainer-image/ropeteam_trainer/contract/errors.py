"""Roots of the library's errors, and the tree that they form (a test compares it with the code).

A class is in the module that raises it, below one root, which says whose action is needed. If callers of
Python's own functions would expect a builtin, that is its second base. Private exceptions are not in it.

    RopeteamError                   parent of all, also of the operator's (ropeteam/errors.py)
      UserError                     the user has to change something
        StrategyError               ValueError, contract/strategy.py
        LaunchError                 launchers/parsing.py
        CheckpointNotFound          ValueError, checkpoint/decisions/restore.py
        ExportError                 ValueError, checkpoint/export.py
      ProtocolError                 a peer sent what we do not accept
        DecodeError                 ValueError, contract/codec.py
        WireError                   ConnectionError, contract/wire.py
        BadMessage                  ValueError, rank/exchange.py
        WrongSecret                 ConnectionError, strategies/parameterserver/wire.py
        ServerRefused               RuntimeError, strategies/parameterserver/requests.py
      ReplicaLost                   ConnectionError, strategies/exact/sums.py
      CannotTakeOver                ConnectionError, strategies/exact/members.py
      UntracedArgument              TypeError, data/substitution.py
      StorageError                  files cannot be used, now or ever
        CheckpointUnavailable       OSError, checkpoint/decisions/restore.py
          UnavailableElsewhere      checkpoint/decisions/restore.py
          UnavailableEverywhere     checkpoint/decisions/restore.py
        MalformedCheckpoint         ValueError, checkpoint/format/contents.py
        UnexpectedFile              OSError, system/folders.py
      HttpError                     system/http.py
      Superseded                    checkpoint/decisions/journal.py
"""

from __future__ import annotations


class RopeteamError(Exception):
    """Parent of all errors of Ropeteam."""


class UserError(RopeteamError):
    """The user has to change the command, the script, the job or a path. The text names what."""


class ProtocolError(RopeteamError):
    """A message of a peer, or the connection to it, is not acceptable."""


class StorageError(RopeteamError):
    """Files of a checkpoint cannot be used."""
