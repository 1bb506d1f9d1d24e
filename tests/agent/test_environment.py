"""What a rank finds in its environment."""

from __future__ import annotations

from dataclasses import replace

from tests.agent.life import a_plan, a_ref, an_identity

from ropeteam_trainer.agent.environment import interface_names, launcher_environment, rank_environment
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
        "OMP_NUM_THREADS": "1",
        config.EPOCH: "1.0.3",
        "PATH": "/bin",
        config.TRACE: "/trace",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not {config.CONFIG, config.TOKEN_FILE} & set(found), "a rank needs no key"


def test_the_users_own_values_win_where_they_may():
    found = rank_environment({"OMP_NUM_THREADS": "8"}, SETTINGS, a_plan(), an_identity(), 0)
    assert found["OMP_NUM_THREADS"] == "8"


def test_the_rank_plan_says_where_to_go_on_from():
    first = rank_environment({}, SETTINGS, a_plan(), an_identity(), 0)[config.RANK_PLAN]
    assert codec.decode(RankPlan, first) == RankPlan(
        "1.0.1", (), False, SETTINGS.checkpoint, Resume.LATEST, None, "j", "uid"
    )
    later = rank_environment({}, SETTINGS, a_plan(2, restore=(a_ref(5),)), an_identity(), 0)[config.RANK_PLAN]
    assert codec.decode(RankPlan, later).restore == ("step-5/1.0.1#d",)
    assert codec.decode(RankPlan, later).lineage_known


def test_a_rank_is_told_where_the_keys_of_checkpoints_are_and_whom_to_trust():
    """The keys themselves would be inherited by all that it starts."""
    identity = replace(an_identity(), keys_file="/keys", keys=(b"key",))
    found = rank_environment({}, replace(SETTINGS, trust=Trust.ANY), a_plan(), identity, 0)[config.RANK_PLAN]
    assert codec.decode(RankPlan, found).keys == "/keys"
    assert codec.decode(RankPlan, found).trust is Trust.ANY


def test_a_launcher_is_told_where_and_how_many_but_no_rank():
    found = launcher_environment({"A": "b"}, a_plan(processes=4), slot=1)
    assert found["NNODES"] == "2"
    assert found["NODE_RANK"] == "1"
    assert found["NPROC_PER_NODE"] == "4"
    assert found["MASTER_ADDR"] == "10.0.0.0"
    assert found["A"] == "b"
    assert not {"RANK", "LOCAL_RANK", "TORCHELASTIC_USE_AGENT_STORE"} & set(found)


def test_gloo_and_nccl_use_the_pods_interface():
    assert interface_names("10.0.0.1", "eth0") == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    assert interface_names("127.3.0.1", "lo") == {"GLOO_SOCKET_IFNAME": "lo"}, "NCCL refuses the loopback"
    assert interface_names("10.0.0.1", None) == {}
