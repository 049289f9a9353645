# All targets run in .venv, and create or update it as required.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
JOBS   ?= 2
MODELS ?=
DEVICE ?= cuda
# The build of onnxruntime: gpu (it also runs on CPUs), or cpu, which is 270 MB smaller; later runs keep the build of .venv.
ORT    ?= $(or $(shell cut -d' ' -f1 $(VENV)/.installed 2>/dev/null),gpu)
INSTALL = @.ci/install "$(VENV)" "$(PYTHON)" $(ORT)

TARGETS := help demo test test-full test-all coverage lint docs dist bench bench-specialize gpu-check lock clean installed installed-dev \
           installed-docs installed-peers installed-s3
.PHONY: $(TARGETS)

# make -f DIR/Makefile: run in DIR
ifneq ($(strip $(MAKEFILE_LIST)),Makefile)
$(TARGETS):
	@$(MAKE) --no-print-directory -C "$$(dirname "$(strip $(MAKEFILE_LIST))")" $@
else

help:
	@echo "make demo       optimize, check and dump a sample model (ORT=cpu: without the GPU build of onnxruntime)"
	@echo "make test       a part of the test suite that covers every area, about 3 minutes on 2 idle cores"
	@echo "make test-full  the remaining tests, about 8 minutes"
	@echo "make test-all   all tests, with long sweeps: several hours"
	@echo "make coverage   run the tests of make test, and print uncovered lines (without child processes)"
	@echo "make lint       ruff (rules and format), mypy, and import-linter"
	@echo "make docs       render the documentation, with an API reference, to build/site"
	@echo "make dist       build the sdist and the wheel, and test each in a fresh environment"
	@echo "make bench      rebuild the tables of docs/benchmarks.md and README.md (MODELS=DIR: for a folder of models instead)"
	@echo "make bench-specialize  rebuild the tables of docs/specialize.md (MODELS=DIR: measure a folder of models)"
	@echo "make gpu-check  errors, bandwidth and latency on the CUDA provider in 8 minutes (DEVICE=cpu: a rehearsal; MODELS=DIR)"
	@echo "make lock       update the pinned versions of the development environment"
	@echo "make clean      remove all created files"

installed:
	$(INSTALL)

installed-dev:
	$(INSTALL) dev

installed-s3:
	$(INSTALL) dev s3

installed-docs:
	$(INSTALL) docs

installed-peers:
	$(INSTALL) dev peers

demo: installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash samples/00_demo.sh build/demo
	@echo
	@echo "graphopt is $(BIN)/graphopt. Next, a model of your own:"
	@echo "  $(BIN)/graphopt optimize your.onnx"

test: installed-dev
	@echo "a part of the test suite, about 3 minutes on 2 cores; make test-full runs the rest"
	@$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow and not full"

test-full: installed-dev
	@echo "the tests that make test omits, about 8 minutes on 2 idle cores"
	@$(BIN)/python -m pytest -q -n $(JOBS) -m "full and not slow"

test-all: installed-s3
	$(BIN)/python -m pytest -q -n $(JOBS) -m ""

coverage: installed-dev
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow and not full" --cov --cov-report=term --cov-report=xml:build/coverage.xml

lint: installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the documentation is build/site/index.html"

dist:
	@.ci/dist "$(PYTHON)"

bench: installed-peers
	$(BIN)/python -m benchmarks.nodes $(if $(MODELS),$(MODELS),--docs docs/benchmarks.md --docs README.md)
	$(if $(MODELS),,$(BIN)/python -m benchmarks.transcript --docs README.md)
	$(BIN)/python -m benchmarks.process_time $(if $(MODELS),$(MODELS),--docs docs/benchmarks.md)
	$(BIN)/python -m benchmarks.memory $(if $(MODELS),$(MODELS),--docs docs/benchmarks.md)
	$(if $(MODELS),,$(BIN)/python -m benchmarks.scaling --docs docs/benchmarks.md)

bench-specialize: installed-dev
	$(BIN)/python -m benchmarks.guards $(if $(MODELS),,--docs docs/specialize.md)
	$(BIN)/python -m benchmarks.specialize $(if $(MODELS),$(MODELS),--docs docs/specialize.md)

# Installs nothing: it also runs on a GPU machine that no package registry can be reached from.
gpu-check:
	@$(PYTHON) -c 'import click, numpy, onnx, onnx_ir, onnxruntime, rich' 2>/dev/null || \
	  { echo "gpu-check: $(PYTHON) lacks packages that graphopt requires" >&2; \
	    echo "hint: make demo installs them; then make gpu-check PYTHON=$(BIN)/python" >&2; exit 2; }
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m benchmarks.gpu_check --device $(DEVICE) \
	  --out "$(or $(OUT),build/gpu-check)" $(if $(MODELS),--models "$(MODELS)")

lock: installed-dev
	$(PIP) install -q pip-tools
	$(BIN)/pip-compile -q --upgrade --strip-extras --no-header --no-annotate --no-emit-index-url \
	  --no-emit-find-links --extra dev --extra docs --extra peers --extra s3 -o requirements-dev.lock pyproject.toml

clean:
	rm -rf $(VENV) build dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

endif
