# Everything a contributor runs. A virtual environment that exists already: make check VENV=/path/to/venv
VENV ?= .venv
export PATH := $(abspath $(VENV))/bin:$(PATH)
PYTHON := $(VENV)/bin/python
ENGINE ?= docker
SEEDS ?= 20
PERCENT ?= 1
CHECKS := check-types check-format check-lint check-pure check-house check-crds check-chart check-imports check-lock check-python check-signposts
# What runs inside any image with Python 3.10.
AGENT_SIDE := $(addprefix trainer-image/ropeteam_trainer/,contract coordinator agent launchers checkpoint/__init__.py \
	checkpoint/decisions system __init__.py)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-newest check sim sim-shipped fuzz seeded crds chart docs lock launchers prometheus cluster cluster-down e2e e2e-core gpu release images fmt bench pictures clean

help:  ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install:  ## make the virtual environment, exactly as uv.lock says
	tools/install $(VENV)

$(VENV)/bin/ropeteam:
	tools/install $(VENV)

demo: $(VENV)/bin/ropeteam  ## train a real model on three local workers that lose a rank and a pod
	$(PYTHON) examples/demo.py

test: $(VENV)/bin/ropeteam  ## run all tests; the pure rooms must be covered to the last branch
	tools/test

test-newest:  ## test what runs in ranks with the newest torch, or another: make test-newest TORCH=2.14.1
	tools/test-newest $(TORCH)

check: $(VENV)/bin/ropeteam  ## format, lint, types, import contracts, house numbers, CRD drift (no tests)
	@$(MAKE) --no-print-directory -k -j2 -Otarget $(CHECKS)

sim: $(VENV)/bin/ropeteam  ## run campaigns of the fast simulator, 3,500 steps each: make sim SEEDS=200
	$(PYTHON) tools/sim.py --seeds $(SEEDS)

sim-shipped: $(VENV)/bin/ropeteam  ## run histories of the shipped code in simulated time: make sim-shipped SEEDS=200
	$(PYTHON) tools/sim.py --shipped --seeds $(SEEDS)

fuzz: $(VENV)/bin/ropeteam  ## throw generated input at every reader: make fuzz PERCENT=100 (hours)
	$(PYTHON) tools/fuzz.py --percent $(PERCENT)

seeded: $(VENV)/bin/ropeteam  ## apply each seeded bug in turn; the tests must catch every one
	$(PYTHON) tools/seeded.py

crds: $(VENV)/bin/ropeteam  ## write crds/, the schema for editors, docs/reference/ and tests/messages.txt, from the code
	$(PYTHON) -m ropeteam.api.crd
	$(PYTHON) -m tools.values
	$(PYTHON) -m tools.reference
	$(PYTHON) -m tools.messages

chart: $(VENV)/bin/ropeteam  ## write the chart's values, their schema, the CRD and the dashboards in it, from tools/
	$(PYTHON) -m tools.values
	$(PYTHON) -m tools.dashboards

docs: $(VENV)/bin/ropeteam  ## build the site of docs/ in dist/site; a dead link fails
	$(PYTHON) -m sphinx -W --keep-going -q -d dist/.doctrees docs dist/site
	@echo "open dist/site/index.html"

lock: $(VENV)/bin/ropeteam  ## write uv.lock from pyproject.toml, and its parts for the images in requirements/
	uv lock
	tools/requirements

launchers: $(VENV)/bin/ropeteam  ## record the options of launchers: make launchers WITH=/path/to/python (that has accelerate, say)
	$(PYTHON) -m tools.launchers $(PYTHON) $(WITH)

prometheus: $(VENV)/bin/ropeteam  ## build a real Prometheus for the tests, once (Go; 6 minutes on 2 cores)
	$(PYTHON) -m lab.kube.programs prometheus promtool

cluster: $(VENV)/bin/ropeteam  ## start a real Kubernetes with three nodes on this machine (Linux, root)
	$(PYTHON) -m lab.kube up

cluster-down: $(VENV)/bin/ropeteam  ## stop it, and leave nothing behind
	$(PYTHON) -m lab.kube down

e2e: $(VENV)/bin/ropeteam  ## end to end on real nodes that are killed, cut off, restored (Linux, root); or on KUBECONFIG's cluster, without that
	ROPETEAM_E2E=1 $(PYTHON) -m pytest tests/cluster $(if $(KUBECONFIG),,tests/differential tests/frameworks)

gpu: $(VENV)/bin/ropeteam  ## what needs a GPU: forks beside CUDA, NCCL, every technique on a device (one GPU; minutes)
	ROPETEAM_GPU=1 $(PYTHON) -m pytest -W default -rA tests/gpu

e2e-core: $(VENV)/bin/ropeteam  ## the core of it; skipped, loudly, on a machine that cannot (what CI runs)
	tools/e2e-core

release: $(VENV)/bin/ropeteam  ## write dist/: make release VERSION=x.y.z PYTHON_IMAGE=python@sha256:... [STEPS="wheel chart sboms images sums"]
	$(PYTHON) -m tools.release --version "$(VERSION)" --base "$(PYTHON_IMAGE)" $(STEPS)

images:  ## build the images of operator and trainer: make images ENGINE=podman
	$(ENGINE) build -t ghcr.io/ropeteam/ropeteam:0.1.0 .
	$(ENGINE) build -f trainer-image/Dockerfile -t ghcr.io/ropeteam/trainer:0.1.0 .

fmt: $(VENV)/bin/ropeteam  ## format and mend what ruff can mend
	ruff check --fix .
	ruff format .

bench: $(VENV)/bin/ropeteam  ## run benchmarks beside their peers: make bench ONLY="gang_restart memory", or --list (about 90 minutes)
	$(PYTHON) -m benchmarks $(ONLY)

pictures: $(VENV)/bin/ropeteam  ## draw results of benchmarks in dist/pictures; ONLY=--shown: those of the docs, in place
	$(PYTHON) -m benchmarks.pictures $(ONLY)

clean:  ## remove caches and build outputs, keep the virtual environment
	rm -rf dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* .import_linter_cache
	find operator trainer-image lab tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The parts of `check`: each can be run alone.
.PHONY: $(CHECKS)
check-types:
	mypy
check-format:
	ruff format --check .
check-lint:
	ruff check .
check-pure:  # no clock, chance, environment or I/O
	ruff check --select TID251 $$($(PYTHON) tools/house.py --pure)
check-house:
	$(PYTHON) tools/house.py
check-crds:
	$(PYTHON) -m ropeteam.api.crd --check
	$(PYTHON) -m tools.reference --check
	$(PYTHON) -m tools.messages --check
check-chart:
	$(PYTHON) -m tools.values --check
	$(PYTHON) -m tools.dashboards --check
check-imports:
	lint-imports
check-signposts:
	$(PYTHON) tools/signposts.py
check-lock:
	tools/requirements --check
check-python:
	vermin --quiet --no-tips --eval-annotations --target=3.10- --violations $(AGENT_SIDE)
