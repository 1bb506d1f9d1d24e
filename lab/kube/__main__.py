"""`python -m lab.kube up|down|env`: a real cluster on this machine, for people. See `make cluster`."""

from __future__ import annotations

import sys
import time

from lab.kube import images
from lab.kube.cluster import CannotRun, KubeCluster
from lab.kube.programs import CannotBuild

NODES = 3


def main(arguments: list[str]) -> int:
    lab = KubeCluster(NODES, images.all_of_them() if "--bare" not in arguments else ())
    match arguments[:1]:
        case ["up"]:
            begin = time.monotonic()
            try:
                lab.up()
            except (CannotRun, CannotBuild) as problem:
                print(problem, file=sys.stderr)
                return 1
            print(f"{NODES} nodes are Ready after {time.monotonic() - begin:.0f} s")
            print(f"export KUBECONFIG={lab.control.kubeconfig}\nexport PATH={lab.tools}:$PATH")
        case ["down"]:
            lab.down()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
