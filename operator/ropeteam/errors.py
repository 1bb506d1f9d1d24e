"""Roots of the operator's errors, and the tree that they form (a test compares it with the code).

The rules are those of the library's (ropeteam_trainer/contract/errors.py). Two of its classes are in this
tree.

    RopeteamError                   of the library
      RequestError                  a request to the API server failed
        ApiError                    controller/client/apiclient.py
          NotFound                  controller/client/apiclient.py
            NoSuchKind              controller/client/apiclient.py
          QuotaExceeded             controller/client/apiclient.py
          Conflict                  controller/client/apiclient.py
        ResponseTooLarge            controller/client/boundedjson.py
      AlreadyDone                   the requested state exists: no failure for most callers
        OwnedObjectExists           controller/client/apiclient.py
        AlreadyGone                 controller/client/apiclient.py
      CannotRun                     the operator's process ends
        SettingsError               controller/settings.py
        CrdMissing                  controller/assembly.py
        LeadershipLost              controller/election.py
        AccessError                 ConnectionError, controller/client/access.py
      Fenced                        controller/client/apiclient.py
      CoordinatorUnreachable        controller/client/coordinator.py
      CommandError                  ClickException, cli/errors.py
        InvalidInput                cli/errors.py
        CommandFailed               cli/errors.py
      ManifestError                 ValueError, cli/manifest/manifestyaml.py
      StatusError                   local/resources.py
        Undecodable                 local/resources.py
      LocalClusterError             RuntimeError, local/cluster.py
      ContainerError                local/node/podspec.py
        ContainerNotReady           local/node/podspec.py
        ContainerStartError         local/node/podspec.py
      ProtocolError                 of the library: a peer sent what we do not accept
        OutOfBounds                 ValueError, core/seen/bounds.py
"""

from __future__ import annotations

from ropeteam_trainer.contract.errors import RopeteamError


class RequestError(RopeteamError):
    """A request to the API server failed, after the retries that it deserves."""


class AlreadyDone(RopeteamError):
    """The state that a request would have made exists."""


class CannotRun(RopeteamError):
    """The operator's process cannot start, or has to end. The text names what to change."""
