"""One parameter server with few descriptors, until its input ends.

    guarded.py FOLDER DESCRIPTORS SECRET PLACES

Says its port, then for each line of its input "kept", once its state has a new file in FOLDER.
"""

from __future__ import annotations

import resource
import socket
import sys
from pathlib import Path

import torch
from torch import nn

from ropeteam_trainer.contract.strategy import ParameterServer
from ropeteam_trainer.strategies.parameterserver import admission
from ropeteam_trainer.strategies.parameterserver.service import Server
from ropeteam_trainer.strategies.parameterserver.share import Share


def main() -> None:
    admission.HANDSHAKE_SECONDS = 300.0
    folder, descriptors, secret, places = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    model = nn.Linear(3, 2)
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    share = Share(parameters, optimizer, folder / "server", 1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, most))
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(share, listener, secret, ParameterServer(), places)
    server.start()
    server.set_ready()
    print(listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        with server.changed:
            share.replace_content(share.content(), line)
        print("kept", flush=True)
    server.close()


main()
