"""How torch.distributed says that somebody else died. Pure."""

from __future__ import annotations

import re

_BROKEN = re.compile(
    r"Dist(Backend|Network|Store)Error|Connection (closed|reset) by peer|Connection refused|Broken pipe"
    r"|gloo::|ncclRemoteError|ncclSystemError|ProcessGroupNCCL|NCCL (communicator was aborted|watchdog)"
)


def blames_a_peer(text: str) -> bool:
    """An error with this text is a consequence: a peer, or the store, was gone before."""
    return _BROKEN.search(text) is not None
