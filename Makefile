# Everything runs in .venv, which each target creates and refreshes as far as it needs it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
SETUP  := pyproject.toml requirements-dev.lock
JOBS   ?= 2
MODELS ?=

.PHONY: help demo test test-all lint bench bench-specialize gpu-check lock clean

help:
	@echo "make demo       optimize, check and dump a sample model"
	@echo "make test       the test suite; make test-all adds the long sweeps"
	@echo "make lint       ruff (rules and format) and mypy"
	@echo "make bench      rebuild the tables of docs/benchmarks.md and README.md (MODELS=DIR: for a folder of models instead)"
	@echo "make bench-specialize  rebuild the tables of docs/specialize.md (MODELS=DIR: measure a folder of models)"
	@echo "make gpu-check  correctness and latency on the CUDA provider, run from the source tree"
	@echo "make lock       pin the development environment anew"
	@echo "make clean      remove everything that these made"

demo: $(VENV)/.installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash samples/01_optimize.sh build/demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash samples/02_dump.sh build/demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash samples/03_verify_and_run.sh build/demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS) -m ""

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.peers
	$(BIN)/python -m benchmarks.nodes $(if $(MODELS),$(MODELS),--docs docs/benchmarks.md --docs README.md)
	$(if $(MODELS),,$(BIN)/python -m benchmarks.transcript --docs README.md)
	$(BIN)/python -m benchmarks.process_time $(if $(MODELS),$(MODELS),--docs docs/benchmarks.md)
	$(BIN)/python -m benchmarks.memory $(if $(MODELS),$(MODELS),--docs docs/benchmarks.md)
	$(if $(MODELS),,$(BIN)/python -m benchmarks.scaling --docs docs/benchmarks.md)

bench-specialize: $(VENV)/.dev
	$(BIN)/python -m benchmarks.guards $(if $(MODELS),,--docs docs/specialize.md)
	$(BIN)/python -m benchmarks.specialize $(if $(MODELS),$(MODELS),--docs docs/specialize.md)

# Installs nothing: it also runs on a GPU machine that no package registry can be reached from.
gpu-check:
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) benchmarks/gpu_check.py

lock: $(VENV)/.dev
	$(PIP) install -q pip-tools
	$(BIN)/pip-compile -q --upgrade --strip-extras --no-header --no-annotate --no-emit-index-url \
	  --no-emit-find-links --extra dev --extra peers -o requirements-dev.lock pyproject.toml

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp that installs more also renews the stamps that it covers.
$(VENV)/.installed: $(SETUP) | $(BIN)/python
	$(PIP) install -q -c requirements-dev.lock -e .
	@$(BIN)/python -m compileall -q graphopt  # pip compiles only what it copies
	@touch $@

$(VENV)/.dev: $(SETUP) | $(BIN)/python
	$(PIP) install -q -c requirements-dev.lock -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.peers: $(SETUP) | $(BIN)/python
	$(PIP) install -q -c requirements-dev.lock -e '.[dev,peers]'
	@touch $@ $(VENV)/.dev $(VENV)/.installed
