"""What a job's Secret holds, and which of the operator's keys it comes of."""

from __future__ import annotations

import base64

from ropeteam.controller.executor import secret
from ropeteam.controller.settings import OperatorKey
from ropeteam.core.actions import CreateSecret
from ropeteam_trainer.contract import seals


def words(key: OperatorKey, uid: str = "uid", folder: str = "") -> dict[str, str]:
    made = secret(CreateSecret("name", uid, {}, {}, folder), "space", key)
    assert made["immutable"]
    return {name: base64.b64decode(word).decode() for name, word in made["data"].items()}


KEY = OperatorKey(b"k" * 32)


def test_a_secret_holds_the_jobs_token_and_the_key_of_its_folder() -> None:
    held = words(KEY, folder="folder")
    assert bytes.fromhex(held["token"]) == KEY.token("uid")
    assert set(held) == {"token", seals.FILE}
    assert held[seals.FILE] == words(KEY, "made anew", "folder")[seals.FILE]
    assert held[seals.FILE] != words(KEY, folder="other")[seals.FILE]


def test_a_job_without_checkpoints_has_a_token_alone() -> None:
    assert set(words(KEY)) == {"token"}
