# `make` sets up and runs the study, `make test` sets up and passes the tests.

PYTHON ?= python3
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
BIN := .venv/bin

.PHONY: study test lint

study: .venv/ready
	$(BIN)/snakemake --cores $(CORES)

test: .venv/ready
	$(BIN)/pytest -n $(CORES)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("kvsim needs Python 3.11 or later; say which with: make PYTHON=...")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
