"""Faults around the processes: network, nodes, API server and disk. See moves.py."""

from __future__ import annotations

from typing import Any, TypeVar

from tests.shipped.disk import ERRORS
from tests.shipped.kubernetes import copy_of
from tests.shipped.loop import Process
from tests.shipped.nodes import Node, Pod
from tests.shipped.pod import SimPod
from tests.shipped.session import CONTROL
from tests.shipped.site import Site
from tests.sim.moves import Move

from ropeteam.api.status import JobStatus

T = TypeVar("T")


def pick(objects: list[T], move: Move) -> T | None:
    return objects[move.place % len(objects)] if objects else None


def workers(site: Site) -> list[Pod]:
    return site.live_containers(coordinators=False)


def coordinators(site: Site) -> list[Pod]:
    return site.live_containers(coordinators=True)


def freeze(process: Process, seconds: float) -> None:
    process.freeze()
    process.loop.after(seconds, process.thaw)


def resume_pod(pod: SimPod) -> None:
    pod.stopped = False


# ---- network


def _site_nodes(site: Site) -> list[str]:
    return [CONTROL, *(each.node for each in site.operators), *site.nodes]


def _partition_pair(site: Site, move: Move) -> bool:
    nodes = _site_nodes(site)
    one, other = nodes[move.place % len(nodes)], nodes[move.size % len(nodes)]
    if one != other:
        site.network.partitions.add(frozenset((one, other)))
    return one != other


def _isolate(site: Site, move: Move) -> bool:
    nodes = _site_nodes(site)
    site.network.island({nodes[move.place % len(nodes)]})
    return True


def _island(site: Site, move: Move) -> bool:
    """The nodes of coordinator and agents, together, away from all others."""
    nodes = {pod.node.name for pod in (*workers(site), *coordinators(site))}
    if move.size % 3 == 0 and len(nodes) > 2:
        nodes.remove(sorted(nodes)[move.place % len(nodes)])
    if nodes:
        site.network.island(nodes)
    return bool(nodes)


def heal(site: Site, _: Move) -> bool:
    site.network.heal()
    return False


def _slow_node(site: Site, move: Move) -> bool:
    nodes = _site_nodes(site)
    site.network.slowness[nodes[move.place % len(nodes)]] = 1.0 + 25.0 * move.size
    return True


def _reset_connections(site: Site, move: Move) -> bool:
    nodes = _site_nodes(site)
    site.network.reset(nodes[move.place % len(nodes)])
    return True


# ---- nodes and pods


def _node(site: Site, move: Move) -> Node:
    """One where something runs, mostly."""
    busy = sorted({pod.node.name for pod in (*workers(site), *coordinators(site))})
    names = busy if busy and move.size % 4 else list(site.nodes)
    return site.nodes[names[move.place % len(names)]]


def _power_off(site: Site, move: Move) -> bool:
    node = _node(site, move)
    if node.powered:
        node.lose_power()
        return True
    return False


def _kubelet_away(site: Site, move: Move) -> bool:
    _node(site, move).receives = False
    return True


def node_back(site: Site, move: Move) -> bool:
    names = [node for node in site.nodes.values() if not node.in_touch]
    if node := pick(names, move):
        node.come_back()
    return False


def _remove_node(site: Site, move: Move) -> bool:
    """Out of touch, and its object deleted: the pods vanish without a proof of their end."""
    node = _node(site, move)
    node.receives = False
    for obj in site.kubernetes.all("Pod"):
        if obj["spec"].get("nodeName") == node.name:
            site.kubernetes.remove(obj)
    return True


def _lose_node(site: Site, move: Move) -> bool:
    """The machine of a pod is cut off for good, and its object deleted, while what runs there continues."""
    node = _node(site, move)
    site.gone.add(node.name)
    site.network.island({node.name})
    return _remove_node(site, move)


def _sick_node(site: Site, move: Move) -> bool:
    """The container runtime hangs: nobody is started, killed or read there."""
    node = _node(site, move)
    node.receives = False
    for pod in node.pods.values():
        if pod.process and pod.process.alive:
            site.block_stdout(pod.process)
            site.loop.after(20.0 + 20.0 * move.size, site.read_stdout, pod.process)
    return True


def _suspend_machine(site: Site, move: Move) -> bool:
    """All processes of a node are paused, and so do their clocks."""
    node = _node(site, move)
    seconds = 1.0 + 4.0 * move.size
    for pod in site.containers.values():
        if pod.node is node and pod.process and pod.process.alive:
            pod.process.freeze()
            site.loop.after(seconds, pod.process.thaw, seconds)
            if ranks := site.pods.get(pod.uid):
                ranks.stopped = True
                site.loop.after(seconds, resume_pod, ranks)
    return True


def _pod(site: Site, move: Move) -> Any:
    return pick(site.kubernetes.all("Pod"), move)


def _delete_pod(site: Site, move: Move) -> bool:
    if pod := _pod(site, move):
        site.kubernetes.delete(pod, None if move.size % 2 else 0.0)
    return pod is not None


def _force_delete_pod(site: Site, move: Move) -> bool:
    if pod := _pod(site, move):
        site.kubernetes.remove(pod)
    return pod is not None


def _evict_pod(site: Site, move: Move) -> bool:
    if pod := pick(workers(site), move):
        pod.node.evict(pod)
    return pod is not None


# ---- operator and API server


def _operator(site: Site, move: Move) -> Process:
    return site.operators[move.place % len(site.operators)]


def _kill_operator(site: Site, move: Move) -> bool:
    process = _operator(site, move)
    process.die()
    site.loop.after(5.0 * move.size, site.operator_ended, process)
    return True


def _freeze_operator(site: Site, move: Move) -> bool:
    freeze(_operator(site, move), 1.0 + 2.0 * move.size)
    return True


def _crash_between_calls(site: Site, move: Move) -> bool:
    site.crash_after[_operator(site, move).name] = move.size
    return True


def _upgrade(site: Site, move: Move) -> bool:
    """A Deployment replaces the operators one after the other; the pods stay."""
    previous, site.previous = site.previous, False
    for number, process in enumerate(site.operators if previous else ()):
        site.loop.after(0.1 + number * (1.0 + move.size), _replace_operator, site, process)
    return previous


def _replace_operator(site: Site, process: Process) -> None:
    process.die()
    site.operator_ended(process)


def _step_wall_clock(site: Site, move: Move) -> bool:
    seconds = (-3600.0, -60.0, -10.0, 10.0, 60.0, 3600.0)[move.size % 6]
    _operator(site, move).wall_ahead += seconds
    for pod in coordinators(site):
        if pod.process and move.place % 2:
            pod.process.wall_ahead += seconds
    return True


def _api_away(site: Site, move: Move) -> bool:
    site.api_away = True
    site.loop.after(2.0 + 4.0 * move.size, _api_back, site)
    return True


def _api_back(site: Site) -> None:
    site.api_away = False
    site.kubernetes.compact()
    for stream in list(site.streams):
        stream.abort()


def _restore_backup(site: Site, move: Move) -> bool:
    """From a backup: the same object as it was some writes ago."""
    if site.job is None or not site.checks.past:
        return False
    past = site.checks.past[-1 - move.size :][0]
    now = copy_of(site.job) | {"spec": past["spec"], "status": past["status"]}
    now["metadata"]["generation"] = past["metadata"]["generation"]
    site.checks.goes_back(JobStatus.model_validate(past["status"]))
    site.kubernetes.put("MODIFIED", now)
    return True


def _slow_api(site: Site, move: Move) -> bool:
    site.api_slowness = 1.0 + 10.0 * move.size
    return True


def _lag(site: Site, move: Move) -> bool:
    site.lag = 0.3 * move.size
    return True


def _close_watches(site: Site, move: Move) -> bool:
    if move.size % 2:
        site.kubernetes.compact()
    for stream in list(site.streams):
        stream.abort()
    return True


# ---- disk


def _slow_disk(site: Site, move: Move) -> bool:
    site.disk.slowness = 1.0 + 4.0 * move.size
    return True


def _break_disk(site: Site, move: Move) -> bool:
    site.disk.error = ERRORS[move.place % len(ERRORS)]
    site.loop.after(1.0 + 2.0 * move.size, _mend_disk, site)
    return True


def _mend_disk(site: Site) -> None:
    site.disk.error, site.disk.hung = None, False


def _break_mount(site: Site, move: Move) -> bool:
    """A stale handle on one node; the volume is well."""
    node = _node(site, move)
    site.disk.stale[node.name] = ERRORS[move.place % 2]
    site.loop.after(5.0 + 10.0 * move.size, site.disk.stale.pop, node.name, None)
    return True


def _hang_disk(site: Site, move: Move) -> bool:
    site.disk.hung = True
    site.loop.after(1.0 + 3.0 * move.size, _mend_disk, site)
    return True


def _damage(site: Site, _: Move) -> bool:
    return site.disk.damage_newest()


FAULT_MOVES = {
    "cut_pair": _partition_pair,
    "isolate": _isolate,
    "island": _island,
    "slow_node": _slow_node,
    "reset_connections": _reset_connections,
    "power_off": _power_off,
    "kubelet_away": _kubelet_away,
    "remove_node": _remove_node,
    "lose_node": _lose_node,
    "sick_node": _sick_node,
    "suspend_machine": _suspend_machine,
    "delete_pod": _delete_pod,
    "force_delete_pod": _force_delete_pod,
    "evict_pod": _evict_pod,
    "kill_operator": _kill_operator,
    "freeze_operator": _freeze_operator,
    "crash_between_calls": _crash_between_calls,
    "upgrade": _upgrade,
    "step_wall_clock": _step_wall_clock,
    "api_away": _api_away,
    "restore_backup": _restore_backup,
    "slow_api": _slow_api,
    "lag": _lag,
    "cut_watches": _close_watches,
    "slow_disk": _slow_disk,
    "break_disk": _break_disk,
    "break_mount": _break_mount,
    "hang_disk": _hang_disk,
    "damage": _damage,
}
