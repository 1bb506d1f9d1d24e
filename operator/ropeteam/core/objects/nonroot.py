"""A worker pod for a namespace where Pod Security lets nothing run as root; used only where it refuses the
pod as written.

The user of an image cannot be read from here, so one is set: 1000, the usual number in images that have a
user, so that the image's own files belong to it. Users set in the template are kept. Folders of an image may
be closed to that user, so it gets a home of its own; and a line in /etc/passwd, because torch and getpass
look up its name. That file comes from an annotation of the pod itself, so it needs no object beside the pod.
Never raises.
"""

from __future__ import annotations

from typing import Any

from ropeteam.api.job import GROUP
from ropeteam.api.rule import at
from ropeteam.core.objects.podparts import add_empty_dir, add_mount, dict_at, is_mounted, list_at
from ropeteam_trainer.contract.config import TRAINER_CONTAINER

USER = 1000
"""UID, and GID, of the container if the template sets none."""
HOME, HOME_VOLUME = "/ropeteam-home", "ropeteam-home"
PASSWD, PASSWD_VOLUME = "/etc/passwd", "ropeteam-passwd"
PASSWD_ANNOTATION = f"{GROUP}/passwd"


def user_of(pod: dict[str, Any]) -> int:
    """UID as which the container `trainer` of this manifest is to run: runAsUser of the container, else of
    the pod, if it is not root; else USER."""
    spec = pod["spec"]
    trainer = next(each for each in spec["containers"] if each.get("name") == TRAINER_CONTAINER)
    given = (at(each, "securityContext.runAsUser") for each in (trainer, spec))
    return next((each for each in given if type(each) is int and each > 0), USER)


def set_user(pod: dict[str, Any], container: dict[str, Any], user: int) -> None:
    """Make a worker pod, complete but for this, run as `user`, in place: security contexts where the template
    sets none, a home folder, and an entry in /etc/passwd. `container`: the pod's `trainer`."""
    spec = pod["spec"]
    of_pod, own = dict_at(spec, "securityContext"), dict_at(container, "securityContext")
    of_pod.setdefault("runAsNonRoot", True)
    of_pod.setdefault("fsGroup", user)
    of_pod.setdefault("fsGroupChangePolicy", "OnRootMismatch")  # no walk through a large volume at each start
    for field in ("runAsUser", "runAsGroup"):
        if field not in of_pod:
            own.setdefault(field, user)
    add_empty_dir(container, spec, HOME_VOLUME, HOME, {})
    if not any(each.get("name") == "HOME" for each in container["env"]):
        container["env"].append({"name": "HOME", "value": HOME})
    if not is_mounted(container, PASSWD):
        _mount_passwd(pod, container, user)


def _mount_passwd(pod: dict[str, Any], container: dict[str, Any], user: int) -> None:
    """Mount a file with users root and trainer at /etc/passwd, from an annotation of the pod."""
    lines = f"root:x:0:0:root:/root:/bin/sh\ntrainer:x:{user}:{user}::{HOME}:/bin/sh\n"
    dict_at(pod["metadata"], "annotations")[PASSWD_ANNOTATION] = lines
    source = {"fieldPath": f"metadata.annotations['{PASSWD_ANNOTATION}']"}
    file = {"path": "passwd", "fieldRef": source}
    list_at(pod["spec"], "volumes").append({"name": PASSWD_VOLUME, "downwardAPI": {"items": [file]}})
    add_mount(container, PASSWD_VOLUME, PASSWD, subPath="passwd", readOnly=True)
