# One way to do each job; `make help` lists them. Every target installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
UV := UV_LINK_MODE=hardlink $(BIN)/uv
TESTS ?= tests
PYTEST_FLAGS ?=
# One worker per core; tests that share a bed run on one worker. PYTEST_FLAGS=-n0 runs them one by one, for a debugger.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadscope --no-loadscope-reorder --durations 10

.DEFAULT_GOAL := help
.PHONY: help setup demo check quick test lint bench docs clean native lock format manifests map

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready native ## Install the virtual environment, locked packages, native libraries and Debian packages of the test bed
	@$(BIN)/python -m testbed packages

demo: $(VENV)/.ready native ## Demonstrate GPU sharing on simulated GPUs
	@$(BIN)/baton demo

check: $(VENV)/.ready ## Run the inner loop: lint, types and the tests without processes or clusters, in under two minutes
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint quick

quick: $(VENV)/.ready
	BATON_TEST_EFFORT=0.1 $(PYTEST) -q -m "not process and not cluster" $(PYTEST_FLAGS) $(TESTS)

test: $(VENV)/.ready ## Run all tests, or TESTS=…; those on a real Kubernetes are skipped, with one line, where it is not available
	@$(BIN)/python -m tests.prepare $(PYTEST_FLAGS) $(TESTS)
	$(PYTEST) $(PYTEST_FLAGS) $(TESTS)

lint: $(VENV)/.ready ## Check format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.ready ## Format the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## Run the benchmarks, each a ratio against a named baseline
	$(BIN)/python -m bench

docs: $(VENV)/.ready ## Build the documentation into ./site
	$(BIN)/zensical build --clean

manifests: $(VENV)/.ready ## Regenerate deploy/crds/crds.yaml from baton.install.crds
	$(BIN)/baton install --crds --print > deploy/crds/crds.yaml

map: $(VENV)/.ready ## Bring the map of modules in docs/architecture.md up to date
	@$(BIN)/python -m tests.packaging.module_map

native: $(VENV)/.ready ## Compile the C libraries
	@$(BIN)/python native/build.py > /dev/null

lock: $(VENV)/.ready ## Update requirements.lock to the newest allowed packages
	$(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-index-url --all-extras --group dev --output-file requirements.lock pyproject.toml

clean: ## Remove everything built here, but keep the cache of compiled Kubernetes programs
	rm -rf $(VENV) build dist site src/baton/_native .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "baton: $(PYTHON) is older than 3.11; set PYTHON to a newer one" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get install -y -qq python3-venv > /dev/null; } \
		|| { echo "baton: $(PYTHON) has no venv module; install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.ready: requirements.lock pyproject.toml hatch_build.py | $(BIN)/uv
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@
