"""`python -m lab.kube.prepare`: all that the tests on a real cluster need, or why they cannot run.

For continuous integration, on machines that nobody has set up: installs Debian packages, builds the programs
and the base image, and starts one empty node to see. Exit status 3: this machine cannot, and the last lines
say why. Then it builds our images, which takes longer than a test may: what fails there is a fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from lab.kube import cluster, images, programs

FREE_BYTES = 20 << 30
"""For programs while they are built, images in their three forms, and nodes."""
_PROBE = "ip link add type veth && mount -t tmpfs none /mnt && mount --make-rshared /"
CANNOT = 3


def prepare() -> None:
    """Raises CannotRun, CannotBuild."""
    if os.geteuid() == 0 and shutil.which("apt-get") and (packages := _missing_packages()):
        _run("install Debian packages", "apt-get", "update", "-qq")
        _run("install Debian packages", "apt-get", "install", "-qq", "-y", *packages)
    cluster.check()
    _run("make namespaces", "unshare", "--net", "--pid", "--mount", "--uts", "--fork", "sh", "-c", _PROBE)
    for path in (images.cache(), programs.folder()):
        path.mkdir(parents=True, exist_ok=True)
        if not any(path.iterdir()) and (free := shutil.disk_usage(path).free) < FREE_BYTES:
            raise cluster.CannotRun(f"{path} has {free >> 30} GiB free, {FREE_BYTES >> 30} are needed")
    programs.ensure()
    try:
        images.base()
        with cluster.KubeCluster(nodes=1):
            pass
    except (OSError, RuntimeError, TimeoutError, subprocess.CalledProcessError) as error:
        raise cluster.CannotRun(f"a cluster of one empty node does not come up: {error}") from None


def _missing_packages() -> list[str]:
    missing = cluster.missing_packages()
    if programs.missing():
        missing |= {"gcc", "pkg-config", "libseccomp-dev"}
    return sorted(missing)


def _run(what: str, *command: str) -> None:
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode:
        raise cluster.CannotRun(f"this machine does not let us {what}: {done.stderr.strip()[-1000:]}")


if __name__ == "__main__":
    try:
        prepare()
    except (cluster.CannotRun, programs.CannotBuild) as problem:
        print(problem, file=sys.stderr)
        sys.exit(CANNOT)
    images.loaded(images.all_of_them(), programs.folder())
