"""Tests that need a GPU: `make gpu`, a few minutes on one. They are no part of `make test`."""

from __future__ import annotations

import os

from tests.e2e.conftest import cluster, name

__all__ = ["cluster", "name"]

collect_ignore_glob = [] if os.environ.get("ROPETEAM_GPU") else ["test_*.py"]
