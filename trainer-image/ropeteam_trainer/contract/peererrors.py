"""Error texts of torch.distributed, and of sync Exact, that mean that a peer has died. Pure."""

from __future__ import annotations

import re

_PEER_ERROR = re.compile(
    r"Dist(Backend|Network|Store)Error|Connection (closed|reset) by peer|Connection refused|Broken pipe"
    r"|gloo::|ncclRemoteError|ncclSystemError|ProcessGroupNCCL|NCCL (communicator was aborted|watchdog)"
    r"|no gradients (came from|were taken by)"
)


def blames_a_peer(text: str) -> bool:
    """Whether an error with this text is a consequence: a peer, or the store, had died before. `text`: any
    part of a traceback or of a rank's last lines."""
    return _PEER_ERROR.search(text) is not None
