# `make` lists what can be done. Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
TESTS ?= tests
# Bytecode is written even where PYTHONDONTWRITEBYTECODE is set: each worker would compile all tests anew.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Tests wait more than they compute: on two processors four keep both busy.
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help up test quick soak lint bench tempest clients openstack test-openstack docs schema clean packages compiled libvirt

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: libvirt ## Run a whole cloud on http://127.0.0.1:8774, its data in ./data (ARGS="--hosts 20 --zones a,b")
	@$(BIN)/python -m compileall -q src
	@exec $(BIN)/kilonova up --data data $(ARGS)

test: packages libvirt compiled ## Run all tests, style and types among them (TESTS=tests/store ARGS="-k name")
	@$(PYTEST) -n $(JOBS) --dist worksteal $(TESTS) $(ARGS)

quick: $(READY) compiled ## Run the in-process tests on SQLite, for use while working (TESTS=tests/store ARGS="-k name")
	@$(PYTEST) -n $(JOBS) --dist worksteal --quick $(TESTS) $(ARGS)

soak: packages libvirt compiled ## Repeat tests under random delays (ARGS="tests/faults --minutes 30")
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.soak $(ARGS)

lint: $(READY) ## Check style and types
	@$(BIN)/ruff check --quiet src tests bench examples
	@$(BIN)/ruff format --check --quiet src tests bench examples || { echo "run: $(BIN)/ruff format src tests bench examples" >&2; exit 1; }
	@$(BIN)/mypy

bench: $(VENV)/.bench ## Measure start-up, memory, boots, lists, and what grows with the hosts (ARGS="--boots 50")
	@$(BIN)/python -m compileall -q src
	@$(BIN)/python -m bench $(ARGS)

tempest: packages $(VENV)/.tempest ## Run the tempest tests that must pass (ARGS=--all runs all of tempest.api.compute)
	@$(BIN)/python tests/tempest/run.py $(ARGS)

clients: $(VENV)/.client-suites ## Run the suites that come with clients (ARGS=sdk-compute,novaclient; --ci for a part)
	@$(BIN)/python tests/client_suites/run.py $(ARGS)

openstack: $(READY) ## Start real Keystone, Glance, Neutron and Cinder and leave them running (ARGS=down, status or env)
	@$(BIN)/python -m tests.openstack.cloud $(or $(ARGS),up)

# Without xdist: all tests use one cloud.
test-openstack: TESTS = tests/openstack
test-openstack: packages libvirt $(READY) ## Run the tests against real OpenStack services (TESTS=tests/openstack/test_cloud.py)
	@$(BIN)/python -m tests.openstack.cloud install
	@KILONOVA_TEST_OPENSTACK=1 $(PYTEST) $(TESTS) $(ARGS)

docs: $(READY) ## Write the generated parts of docs/ anew
	@$(BIN)/python -m kilonova.docs

schema: $(READY) ## Write the schema's snapshots anew
	@$(BIN)/python -m kilonova.store.generate

clean: ## Remove .venv and everything that tools left behind; ./data stays
	@[ ! -x $(BIN)/python ] || ! ls .openstack/state/run/*.pid >/dev/null 2>&1 || $(BIN)/python -m tests.openstack.cloud down
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .tempest .client-suites .openstack build dist src/*.egg-info
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

packages:
	@tools/packages

# One process writes the bytecode of all tests, which pytest rewrites; else each worker would do so on a new clone.
compiled: $(READY)
	@$(BIN)/python -m compileall -q src
	@ls tests/__pycache__/conftest.*pytest*.pyc >/dev/null 2>&1 || $(PYTEST) --collect-only -qqq tests >/dev/null

# Real guests need a package that is built against the machine's libvirt; where that is not installed, none is missed.
libvirt: $(READY)
	@[ $(VENV)/.libvirt -nt pyproject.toml ] || ! pkg-config --exists libvirt 2>/dev/null || \
		{ $(BIN)/pip install -qq --disable-pip-version-check --editable '.[libvirt]' && touch $(VENV)/.libvirt; }

$(VENV)/.bench $(VENV)/.tempest $(VENV)/.client-suites: $(VENV)/.%: $(READY)
	@$(BIN)/pip install -qq --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(READY): pyproject.toml tools/venv
	@tools/venv $(PYTHON) $(VENV)
	@touch $@
