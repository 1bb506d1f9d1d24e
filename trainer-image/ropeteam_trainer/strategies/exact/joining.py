"""How the replicas of a job connect to each other: each listens, and connects to those with lower numbers."""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import replace

import torch

from ropeteam_trainer.contract.strategy import StrategyError
from ropeteam_trainer.partition.layout import Layout
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.exact.exchange import BucketShape, Exchange
from ropeteam_trainer.strategies.exact.links import Links
from ropeteam_trainer.strategies.parameterserver import wire
from ropeteam_trainer.system.notice import notice

_NUMBER = struct.Struct(">I")
_SECONDS = 10.0
"""Timeout of each step of a handshake."""


def join_replicas(world: World, grid: Layout, leaves: int, shapes: Sequence[BucketShape]) -> Exchange:
    """Exchange of this rank with the ranks of the same coordinate in all other replicas. All ranks call it
    together."""
    replica = grid.coordinate(world.rank).replicate
    exchange = Exchange(replica, grid.replicate, leaves, shapes)
    if grid.replicate == 1 or not world.communicates:
        return exchange
    secret = world.from_rank_0(lambda: secrets.token_hex(16))
    host = _own_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=grid.replicate) as listener:
        addresses = world.gather(f"{host}:{listener.getsockname()[1]}")
        peers = {grid.coordinate(rank).replicate: rank for rank in _same_part(grid, world.rank)}
        connections = {}
        for other in range(replica):
            connections[other] = wire.connect(addresses[peers[other]], secret)
            connections[other].sendall(_NUMBER.pack(replica))
        while len(connections) < grid.replicate - 1:
            number, connection = _accepted(listener, secret)
            connections[number] = connection
    exchange.use(Links(connections, exchange))
    return exchange


def check_alike(world: World) -> None:
    """Raise StrategyError on all ranks if they would compute other bits from the same numbers: other versions
    of torch, another processor, another number of threads. A collective."""
    mine = (
        f"torch {torch.__version__}",
        f"{torch.get_num_threads()} threads (OMP_NUM_THREADS)",
        torch.cuda.get_device_name(world.device)
        if world.device.type == "cuda"
        else f"CPU capability {torch.backends.cpu.get_cpu_capability()}",
    )
    theirs = world.gather(mine)
    for rank, other in enumerate(theirs):
        for first, here in zip(theirs[0], other, strict=True):
            if here != first:
                raise StrategyError(
                    f"spec.strategy.sync: Exact needs ranks that compute the same bits, but rank 0 has "
                    f"{first} and rank {rank} has {here}; use equal nodes and images, or sync AllReduce"
                )


def _same_part(grid: Layout, rank: int) -> list[int]:
    """Ranks of the same coordinate in all replicas."""
    mine = replace(grid.coordinate(rank), replicate=0)
    return [other for other in range(grid.world) if replace(grid.coordinate(other), replicate=0) == mine]


def _own_address() -> str:
    """Address from which this pod reaches the job's store, and at which peers reach it."""
    store = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with socket.create_connection(store, timeout=_SECONDS) as to_store:
        return str(to_store.getsockname()[0])


def _accepted(listener: socket.socket, secret: str) -> tuple[int, socket.socket]:
    """The next replica that connects and has the secret: its number, and the connection. Others are
    dropped."""
    while True:
        connection, _ = listener.accept()
        try:
            connection.settimeout(_SECONDS)
            nonce = secrets.token_bytes(wire.NONCE_BYTES)
            connection.sendall(nonce)
            answer = bytes(wire.receive_exactly(connection, wire.ANSWER_BYTES))
            connection.sendall(wire.verify_worker_and_prove(secret, nonce, answer))
            (number,) = _NUMBER.unpack(wire.receive_exactly(connection, _NUMBER.size))
            wire.set_socket_options(connection)
        except OSError as error:
            connection.close()
            notice(f"a connection to this replica was refused: {error}")
            continue
        return number, connection
