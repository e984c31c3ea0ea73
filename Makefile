# `make help` lists the targets. Everything runs out of .venv, which `setup` makes.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.octavo-installed
UV_VERSION := 0.13.9
# The first interpreter of a supported version; `make PYTHON=/path/to/python3.12 setup` overrides.
PYTHON ?= $(shell for v in 3.11 3.12 3.13; do python$$v -c '' 2>/dev/null && command -v python$$v && exit; done; command -v python3)
# torch's threads spin while they wait by default, which collapses on a busy machine.
export OMP_WAIT_POLICY := passive
# uv compiles no bytecode: without a cache each of the engines that tests start compiles torch anew.
export PYTHONDONTWRITEBYTECODE :=
# Where tests and the demo keep what they make once (tools, models, images): see tests/cluster.
PYTEST_ARGS ?=

.PHONY: help
help: ## List these targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}'

# ---- the two commands of the README ----

.PHONY: demo
demo: preflight setup ## A cluster, the operator and a model that answers; ends with a URL to try
	@$(BIN)/python -m tests.e2e.demo up

.PHONY: test
test: setup lint types ## Everything that CI runs: lint, types, contracts, all tests
	@$(BIN)/python -m tests.cluster prepare
	@$(MAKE) --no-print-directory --keep-going -j2 unit-half cluster-half

# Side by side, since tests on a cluster wait more than they compute; each line says which half it is of.
# PYTEST_ARGS may choose tests of one half only: the other then has none (pytest's code 5).
NONE_IS_FINE = $(if $(PYTEST_ARGS),|| [ $$? = 5 ])
.PHONY: unit-half cluster-half
unit-half:
	@set -o pipefail; $(BIN)/python -u -m pytest -m "not cluster" $(PYTEST_ARGS) 2>&1 | sed -u 's/^/[unit] /' $(NONE_IS_FINE)
cluster-half:
	@set -o pipefail; $(BIN)/python -u -m pytest -m cluster $(PYTEST_ARGS) 2>&1 | sed -u 's/^/[cluster] /' $(NONE_IS_FINE)

# ---- the demo's and the tests' cluster ----

.PHONY: demo-down
demo-down: setup ## Remove the demo's cluster and everything it made
	@$(BIN)/python -m tests.e2e.demo down

.PHONY: cluster-up
cluster-up: preflight-cluster setup ## A real Kubernetes on this machine; prints its KUBECONFIG
	@$(BIN)/python -m tests.cluster up

.PHONY: cluster-down
cluster-down: setup ## Remove that cluster and everything it made
	@$(BIN)/python -m tests.cluster down

# Before anything is changed: what to install, or which provider to use, on one screen.
.PHONY: preflight preflight-cluster
preflight:
	@$(PYTHON) tests/cluster/preflight.py
preflight-cluster:
	@$(PYTHON) tests/cluster/preflight.py --control-plane

# ---- development ----

.PHONY: setup
setup: $(STAMP) ## The virtual environment in .venv with all extras, pinned by constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else "Octavo needs Python 3.11 to 3.13, found %d.%d (make PYTHON=... to choose)" % v)'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy python3-venv; } || { echo "Install the venv module first: apt-get install python3-venv"; exit 1; }
	@echo "==> virtual environment in $(VENV) ($$($(PYTHON) --version))"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q uv==$(UV_VERSION)
	@echo "==> dependencies (torch is large: a few minutes on a slow line)"
	$(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt --editable '.[engine,operator,dev]'
	@touch $@

.PHONY: fmt
fmt: setup ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

.PHONY: lint
lint: setup ## ruff, import contracts, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell

.PHONY: types
types: setup ## mypy, strict
	$(BIN)/mypy
	$(BIN)/mypy -p tests.cluster -p tests.e2e -m tests.cluster_plugin

.PHONY: unit
unit: setup ## The tests that need no cluster
	$(BIN)/python -m pytest -m "not cluster" $(PYTEST_ARGS)

.PHONY: e2e
e2e: preflight setup ## From a YAML file to tokens on the test cluster
	$(BIN)/python -m pytest tests/e2e $(PYTEST_ARGS)

.PHONY: test-gpu
test-gpu: ## The GPU tests, with the python3 that holds a CUDA build of torch
	PYTHONPATH=operator:engine:kernels python3 -m pytest -m gpu tests/kernels tests/gpu $(PYTEST_ARGS)

.PHONY: crds
crds: setup ## Write what is generated from the CRD and the chart's values: reference pages, chart copies
	$(BIN)/python crds/generate_reference.py
	$(BIN)/python charts/generate_docs.py

.PHONY: constraints
constraints: setup ## Pin what is installed now into constraints.txt
	$(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable > constraints.txt

.PHONY: images
images: setup ## Build the operator's and the engine's image: REGISTRY=... IMAGE_ARGS="--push" (docker or buildah)
	@$(BIN)/python -m images.build $(if $(REGISTRY),--registry $(REGISTRY)) $(IMAGE_ARGS)

# Threads wait as the `octavo` command has them wait. BENCH_ARGS="--trace FILE.csv" for real lengths.
.PHONY: bench-cpu
bench-cpu: setup ## Output tokens per second on this CPU as ratios to transformers, in one run
	env -u OMP_WAIT_POLICY GOMP_SPINCOUNT=10000 $(BIN)/python -m tests.bench.cpu $(BENCH_ARGS)

.PHONY: metrics
metrics: setup ## Write what is generated from the schema of metrics: the reference page, the dashboard
	$(BIN)/python -m octavo_engine.server.metrics_page > engine/METRICS.md
	$(BIN)/python charts/build_dashboard.py

.PHONY: request-fields
request-fields: setup ## Write the reference page of request fields
	$(BIN)/python -m octavo_engine.server.fields_page > engine/REQUEST_FIELDS.md

.PHONY: conformance
conformance: setup ## Ask a server of OpenAI's API all that clients rely on: make conformance URL=http://...
	$(BIN)/python -m tests.conformance $(URL)

# STORM_S seconds of faults, and about a minute for the cluster and for the end state to come about.
STORM_S ?= 300
.PHONY: fault-storm
fault-storm: preflight-cluster setup ## Five minutes (STORM_S=...) of faults before the API server while 50 services come, change and go
	OCTAVO_FAULT_STORM_S=$(STORM_S) $(BIN)/python -m pytest -s tests/operator/test_fault_storm_on_cluster.py $(PYTEST_ARGS)

# Minutes, on a machine with nothing else to do. BLOWS="'evict a pod' 'drain a node'" for some of them.
.PHONY: survive
survive: preflight setup ## What 30 running streams survive: deletes, rollouts, drains, kills; prints a table
	@$(BIN)/python -m tests.e2e.survive $(BLOWS)

# About ten minutes, three of them idle. BENCH_ARGS="--services 100 --idle-s 60" for a shorter look.
.PHONY: bench-operator
bench-operator: preflight-cluster setup ## 500 services on a real API server: time to converge, calls when idle, memory
	@$(BIN)/python -m tests.bench.operator_bench $(BENCH_ARGS)

.PHONY: fuzz-server
fuzz-server: setup ## 5,000 requests made up from the OpenAPI document; minutes, for the night
	OCTAVO_FUZZ_CASES=5000 $(BIN)/python -m pytest -s tests/engine/test_server_fuzz.py $(PYTEST_ARGS)

.PHONY: storm-server
storm-server: setup ## 200 streams over SmolLM2 on this CPU, clients that leave: what stays, who waits
	$(BIN)/python -m tests.bench.server.storm --core-process

.PHONY: bench-server
bench-server: setup ## Tokens/s that one API process streams to 256 clients when tokens cost nothing
	$(BIN)/python -m tests.bench.server.throughput --step-ms 0
	$(BIN)/python -m tests.bench.server.throughput --step-ms 15
