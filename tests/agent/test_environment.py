"""Environment variables of a rank."""

from __future__ import annotations

from dataclasses import replace

from tests.agent.life import a_plan, a_recovery_plan, a_ref, an_identity

from ropeteam_trainer.agent.machine.environment import (
    interface_variables,
    launcher_environment,
    rank_environment,
    rendezvous_port,
)
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume, Trust, WorkerConfig

SETTINGS = WorkerConfig("j", "n", "uid", 1, 2, 2, "h:1", checkpoint=CheckpointConfig("/c"))
BASE = {"PATH": "/bin", config.CONFIG: "secret", config.TOKEN_FILE: "/t", config.TRACE: "/trace"}


def test_a_rank_gets_torchruns_variables():
    plan = a_plan(3, processes=2, store_host="10.0.0.9", store_port=77, restart_count=4)
    found = rank_environment(BASE, SETTINGS, plan, an_identity(1), rank=3)
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.9",
        "MASTER_PORT": "77",
        "TORCHELASTIC_RESTART_COUNT": "4",
        "TORCHELASTIC_RUN_ID": "uid",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        config.STORE_ADDRESS: "10.0.0.9:77",
        "OMP_NUM_THREADS": "1",
        config.WORLD: "1.0.3",
        "PATH": "/bin",
        config.TRACE: "/trace",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not {config.CONFIG, config.TOKEN_FILE} & set(found), "a rank needs no key"


def test_the_users_own_values_win_where_they_may():
    found = rank_environment({"OMP_NUM_THREADS": "8"}, SETTINGS, a_plan(), an_identity(), 0)
    assert found["OMP_NUM_THREADS"] == "8"


def test_the_rank_plan_names_where_to_resume():
    first = rank_environment({}, SETTINGS, a_plan(), an_identity(), 0)[config.RANK_PLAN]
    assert codec.decode(RankPlan, first) == RankPlan(
        "1.0.1", (), False, SETTINGS.checkpoint, Resume.LATEST, None, "j", "uid"
    )
    later = rank_environment({}, SETTINGS, a_plan(2, restore=(a_ref(5),)), an_identity(), 0)[config.RANK_PLAN]
    assert codec.decode(RankPlan, later).restore == ("step-5/1.0.1#d",)
    assert codec.decode(RankPlan, later).lineage_known


def test_the_rank_plan_names_the_ranks_that_join_others_and_whose_checkpoints_are_theirs():
    plan = a_recovery_plan(2, 1, 2)
    sent = codec.decode(RankPlan, rank_environment({}, SETTINGS, plan, an_identity(), 1)[config.RANK_PLAN])
    assert (sent.world_id, sent.started, sent.saves_as) == ("1.0.2", (1, 2), "1.0.1")
    plan = a_recovery_plan(2, 0, 1, new=(0,))
    sent = codec.decode(RankPlan, rank_environment({}, SETTINGS, plan, an_identity(), 1)[config.RANK_PLAN])
    assert (sent.started, sent.saves_as) == ((0, 1), "1.0.2"), "the lead rank is new"
    sent = codec.decode(
        RankPlan, rank_environment({}, SETTINGS, a_plan(2), an_identity(), 1)[config.RANK_PLAN]
    )
    assert (sent.started, sent.saves_as) == ((), "")


def test_a_rank_receives_the_file_of_checkpoint_keys_and_the_trust_policy():
    """The keys themselves would be inherited by all that it starts."""
    identity = replace(an_identity(), keys_file="/keys", keys=(b"key",))
    found = rank_environment({}, replace(SETTINGS, trust=Trust.ANY), a_plan(), identity, 0)[config.RANK_PLAN]
    assert codec.decode(RankPlan, found).keys == "/keys"
    assert codec.decode(RankPlan, found).trust is Trust.ANY


def test_a_command_that_runs_once_per_pod_finds_pytorchjobs_names_and_torchruns():
    plan = a_plan(processes=4)
    found = launcher_environment({"A": "b", "PET_NNODES": "7"}, SETTINGS, plan, an_identity(1))
    where = {"MASTER_ADDR": "10.0.0.0", "MASTER_PORT": str(rendezvous_port("uid"))}
    count = {"NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "4"}
    expected = where | count | {f"PET_{name}": value for name, value in (where | count).items()}
    expected |= {"RANK": "1", "WORLD_SIZE": "2", "A": "b"}
    assert {name: found.get(name) for name in expected} == expected
    assert not {"LOCAL_RANK", "TORCHELASTIC_USE_AGENT_STORE", config.RANK_PLAN} & set(found), (
        "it starts the ranks itself, and hosts their store"
    )


def test_a_pod_that_is_a_world_of_its_own_has_no_rendezvous():
    settings = replace(SETTINGS, worlds_per_pod=True)
    first, second = (
        launcher_environment({}, settings, a_plan(processes=4), an_identity(slot)) for slot in (0, 1)
    )
    expected = {"NNODES": "1", "NODE_RANK": "0", "NPROC_PER_NODE": "4", "MASTER_ADDR": "10.0.0.1"}
    expected |= {"RANK": "0", "WORLD_SIZE": "1", "PET_NNODES": "1", "PET_NODE_RANK": "0"}
    assert {name: second[name] for name in expected} == expected
    assert first["MASTER_ADDR"] == "10.0.0.0"
    assert first["MASTER_PORT"] != second["MASTER_PORT"], "two pods may share the network of one node"


def test_a_single_process_of_a_pod_is_the_rank_also_when_a_shell_starts_it():
    found = launcher_environment({}, replace(SETTINGS, processes=1), a_plan(processes=1), an_identity(1))
    assert (found["RANK"], found["LOCAL_RANK"], found["NPROC_PER_NODE"]) == ("1", "0", "1")
    assert codec.decode(RankPlan, found[config.RANK_PLAN]).world_id == "1.0.1"
    assert "TORCHELASTIC_USE_AGENT_STORE" not in found


def test_jobs_have_rendezvous_ports_of_their_own():
    ports = {rendezvous_port(str(number)) for number in range(100)}
    assert len(ports) > 90
    assert all(20_000 <= port < 29_000 for port in ports)


def test_gloo_and_nccl_use_the_pods_interface():
    both = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    assert interface_variables("10.0.0.1", "eth0") == both
    assert interface_variables("127.3.0.1", "lo") == {"GLOO_SOCKET_IFNAME": "lo"}, "NCCL refuses the loopback"
    assert interface_variables("10.0.0.1", None) == {}
