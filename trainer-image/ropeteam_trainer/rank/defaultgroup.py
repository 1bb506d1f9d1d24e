"""The default process group of a rank whose replica has groups of its own, while there is none of all ranks.

torch's destroy_process_group() destroys the groups of a device mesh with the default one. Those of a
replica's own ranks are as good as before when a rank elsewhere is lost, and the shards of its parameters
refer to them.
So a placeholder becomes the default group: it has number and size, which torch.distributed needs to use other
groups and to form more, but no connections. A collective of the script in it is an error.

It needs names of torch that are not public: `make test-newest` tries them with its newest release.
"""

from __future__ import annotations

import inspect

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

_NAME = c10d.GroupName("ropeteam")


def is_formed() -> bool:
    """Whether there is a default group of all ranks that has connections."""
    default = c10d._world.default_pg
    return default is not None and c10d._world.pg_names.get(default, _NAME) != _NAME


def destroy(keep: range) -> None:
    """Destroy the default process group, and all others but those of these ranks alone. One rank keeps
    none."""
    destroy_group = inspect.unwrap(dist.destroy_process_group)
    if len(keep) == 1:
        if dist.is_initialized():
            destroy_group()
    elif is_formed():
        everyone, world = dist.group.WORLD, c10d._world
        assert everyone is not None
        put_placeholder(everyone.rank(), everyone.size(), *world.pg_map[everyone])
        for group, name in [*world.pg_names.items()]:
            if name != _NAME and not world.pg_group_ranks[group].keys() <= {*keep}:
                destroy_group(group)


def put_placeholder(rank: int, size: int, backend: str, store: Store) -> None:
    """Have a default group without connections, in which groups of some ranks can be formed. store: where
    their ranks find each other."""
    group, world = dist.ProcessGroup(store, rank, size), c10d._world
    world.pg_map[group], world.pg_names[group] = (backend, store), _NAME
    world.pg_group_ranks[group] = {each: each for each in range(size)}
    world.pg_backend_config[group] = str(c10d.BackendConfig(dist.Backend(backend)))
    replace_placeholder(group)


def replace_placeholder(by: dist.ProcessGroup) -> None:
    """Make this the default group, and forget the one without connections, if there is one."""
    world = c10d._world
    c10d._update_default_pg(by)
    for group in [group for group, name in world.pg_names.items() if name == _NAME and group != by]:
        for known in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config):
            known.pop(group, None)
