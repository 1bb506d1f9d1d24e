"""How the replicas of a job connect to each other: each listens, and connects to those with lower numbers."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ropeteam_trainer.contract.strategy import StrategyError
from ropeteam_trainer.partition.layout import Layout
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.exact.exchange import Exchange
from ropeteam_trainer.strategies.exact.links import Links
from ropeteam_trainer.strategies.exact.sums import BucketShape, ReplicaLost
from ropeteam_trainer.strategies.parameterserver import wire
from ropeteam_trainer.system.notice import notice

_NUMBER = struct.Struct(">I")
_HANDSHAKE_SECONDS = 2.0
"""Time in which a connection must prove that it has the secret, while others wait."""
_RETRY_SECONDS = 0.1


def join_replicas(world: World, grid: Layout, leaves: int, shapes: Sequence[BucketShape]) -> Exchange:
    """Exchange of this rank with the ranks of the same coordinate in all other replicas. All ranks call it
    together. Raises ReplicaLost, also where not all have come after the time limit of collectives."""
    replica = grid.coordinate(world.rank).replicate
    exchange = Exchange(replica, grid.replicate, leaves, shapes, world.timeout_seconds)
    if grid.replicate == 1 or not world.communicates:
        return exchange
    secret = world.from_rank_0(lambda: secrets.token_hex(16))
    host = own_address(*_store())
    deadline = time.monotonic() + world.timeout_seconds
    with listener_at(host, grid.replicate) as listener:
        addresses = world.gather(address_of(listener))
        peers = {grid.coordinate(rank).replicate: rank for rank in _same_part(grid, world.rank)}
        at = {other: addresses[rank] for other, rank in peers.items()}
        connections = {other: connected(at[other], secret, replica, deadline) for other in range(replica)}
        awaited = {*range(replica + 1, grid.replicate)}
        while awaited:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            number, connection = accepted(listener, secret, awaited)
            connections[number] = connection
            awaited.discard(number)
    for connection in connections.values():
        set_time_limit(connection, world.timeout_seconds)
    exchange.use(Links(connections, exchange))
    return exchange


def computes_with(world: World) -> str:
    """Description of what the bits of a rank's results depend on, beside its numbers. Raises StrategyError on
    all ranks if it differs between them: other versions of torch, another processor, another number of
    threads. A collective."""
    mine = (
        f"torch {torch.__version__}",
        f"{torch.get_num_threads()} threads (OMP_NUM_THREADS)",
        torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else _processor(),
    )
    theirs = world.gather(mine) if world.communicates else [mine]
    for rank, other in enumerate(theirs):
        for first, here in zip(theirs[0], other, strict=True):
            if here != first:
                raise StrategyError(
                    "spec.strategy.sync: Exact needs ranks that compute the same bits, but rank 0 has "
                    f"{first} and rank {rank} has {here}; use equal nodes and images, or sync AllReduce"
                )
    return ", ".join(mine)


def _processor() -> str:
    """Name of the processor, and the instructions that torch uses."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def _same_part(grid: Layout, rank: int) -> list[int]:
    """Ranks of the same coordinate in all replicas."""
    mine = replace(grid.coordinate(rank), replicate=0)
    return [other for other in range(grid.world) if replace(grid.coordinate(other), replicate=0) == mine]


def _store() -> tuple[str, int]:
    """Address of the job's store. Raises StrategyError."""
    try:
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as error:
        raise StrategyError(
            f"spec.strategy.sync: Exact needs {error} in the environment, as torchrun sets it, to know "
            "the address of this rank; start the script by torchrun, or in a TrainingJob"
        ) from None


def own_address(host: str, port: int) -> str:
    """Address from which this pod reaches the job's store, and at which peers reach it."""
    with socket.create_connection((host, port), timeout=60) as to_store:
        return str(to_store.getsockname()[0])


def listener_at(host: str, backlog: int) -> socket.socket:
    """Socket on which other replicas are awaited."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=backlog)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


def connected(address: str, secret: str, replica: int, deadline: float) -> socket.socket:
    """Connection to the replica at this address. One that drops us, because it was busy with others, is
    tried again until the deadline (on time.monotonic()). Raises ReplicaLost."""
    while True:
        try:
            connection = wire.connect(address, secret, "replica")
            connection.sendall(_NUMBER.pack(replica))
        except OSError as error:
            if isinstance(error, ConnectionRefusedError | wire.WrongSecret) or time.monotonic() > deadline:
                reason = f"Connection refused: the replica at {address} cannot be reached: {error}"
                raise ReplicaLost(reason) from error
            time.sleep(_RETRY_SECONDS)
            continue
        return connection


def accepted(listener: socket.socket, secret: str, awaited: set[int]) -> tuple[int, socket.socket]:
    """The next of the awaited replicas that connects and has the secret: its number, and the connection.
    Others are dropped. Raises ReplicaLost after the listener's timeout."""
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            missing = ", ".join(map(str, sorted(awaited)))
            raise ReplicaLost(f"Connection refused: replicas {missing} did not connect in time") from None
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            nonce = secrets.token_bytes(wire.NONCE_BYTES)
            connection.sendall(nonce)
            answer = bytes(wire.receive_exactly(connection, wire.ANSWER_BYTES))
            connection.sendall(wire.verify_worker_and_prove(secret, nonce, answer))
            (number,) = _NUMBER.unpack(wire.receive_exactly(connection, _NUMBER.size))
            if number not in awaited:
                raise ConnectionError(f"replica {number} is not awaited")
            wire.set_socket_options(connection)
        except OSError as error:
            connection.close()
            notice(f"a connection to this replica was refused: {error}")
            continue
        return number, connection


def set_time_limit(connection: socket.socket, seconds: int) -> None:
    """Set how long a peer may take nothing of what is sent to it: as long as a collective. A debugger or a
    pause of the machine is no loss."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)
