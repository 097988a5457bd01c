# Commands for a fresh machine with Python, make and PyPI:
#   make demo   import, serve, query and benchmark a real model
#   make test   run the whole test suite that this machine can run
#   make conformance   run suites of other projects against the gateway, in environments of up to 9 GB
#   make soak MINUTES=60   load a server, kill its processes, and check that nothing is lost or grows

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# The version with which the export of Hugging Face checkpoints is tested.
TORCH ?= torch==2.13.0

# Test files run in parallel processes. Tests wait a third to half of their time. To run all tests in
# one process: make test UNIT_PROCESSES=0 E2E_PROCESSES=0
CORES := $(shell getconf _NPROCESSORS_ONLN)
UNIT_PROCESSES ?= $(shell expr 5 '*' $(CORES) / 2)
E2E_PROCESSES ?= $(shell expr 2 '*' $(CORES))
# Tests start thousands of processes, which compile the package each time without bytecode files.
# Images of Python often disable these files. OpenBLAS starts threads in each process with NumPy.
PYTEST = PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# Many more random cases, for example every night: make test FULL=1
PYTEST += $(if $(FULL),--full)

# Minutes of `make soak`, and its other options, for example: make soak SOAK='--engine sim'
MINUTES ?= 60

.PHONY: demo test unit e2e conformance lint format docs bench soak gpu-check clean help

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.embedded: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[embedded]'
	@touch $@

# optimum-intel requires torchvision, which an export does not need and which breaks next to a
# CPU-only PyTorch. So it is installed last, without its dependencies, which the extra lists.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[embedded,convert,dev]'
	$(BIN)/python -m pip install --quiet --no-deps 'optimum-intel>=1.25'
	@touch $@ $(VENV)/.embedded

demo: $(VENV)/.embedded
	@PATH="$(abspath $(BIN)):$$PATH" ./examples/demo.sh

test: unit e2e

unit: $(VENV)/.dev
	$(PYTEST) --numprocesses $(UNIT_PROCESSES) --ignore tests/e2e

e2e: $(VENV)/.dev
	$(PYTEST) --numprocesses $(E2E_PROCESSES) tests/e2e

# Suites of other projects: docs/guides/openai-api.md. For example: make conformance CONFORMANCE='-k litellm'
conformance: $(VENV)/.dev
	$(BIN)/python -m pytest -m conformance tests/conformance $(CONFORMANCE)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/generate.py --check
	$(BIN)/python docs/check_language.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Write the generated pages, and build the site of all pages in .site.
docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(VENV)/.embedded
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/first_requests.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/contract.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/hub.py --per-connection 20
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/batcher.py

# Load and kills for MINUTES, with checks. The result is in soak-result/*/soak.html.
soak: $(VENV)/.embedded
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) $(SOAK)

# Needs a GPU and a Python with vLLM: docs/guides/vllm.md. For example: make gpu-check GPU_CHECK='--only raw'
gpu-check: $(VENV)/.embedded
	$(BIN)/python benchmarks/gpu.py $(GPU_CHECK)

clean:
	rm -rf $(VENV) .conformance .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
