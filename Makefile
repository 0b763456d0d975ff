# From a fresh clone, with nothing but python3 and make:
#   make demo              train with loss scaling and draw what happened
#   make demo-distributed  the same data on two processes, one of which overflows
#   make test              every test; FAST=1 for those that need no TensorFlow
#   make notebooks         the notebooks, from fresh kernels; part of `make test`
#   make test-hosts        two hosts (network namespaces, as root) joined by a 1 Gbit/s link
#   make soak              faults at length: 200,000 steps, 24 kills, sizes out of the ordinary
#   make test-oldest       every test on the oldest versions that pyproject.toml allows
#   make bench             what it costs, as ratios; QUICK=1 for coarser figures
#   make lint              formatting, lint, types, import layers
#   make clean             remove environments, caches and what the demo wrote

PYTHON ?= python3
FAST ?=
QUICK ?=
VENV := .venv
OLDEST := .venv-oldest

export TF_CPP_MIN_LOG_LEVEL ?= 2

# A process for each folder of tests: what one does to TensorFlow's runtime does not reach the next.
# Two at a time, the longest first; what a group prints comes when it has ended.
JOBS ?= 2
PURE_TESTS := tests/pure
HOST_TESTS := tests/hosts
LONG_TESTS := tests/distributed tests/tf notebooks tests/contract tests/faults
ALL_TESTS := $(shell find tests -name 'test_*.py' | cut -d/ -f1,2 | sort -u)
ALL_TESTS := $(LONG_TESTS) $(filter-out $(LONG_TESTS) $(HOST_TESTS),$(ALL_TESTS))
TESTS := $(if $(FAST),$(PURE_TESTS),$(ALL_TESTS))
PYTEST := -m pytest --nbmake --nbmake-timeout=240
GROUPS := $(addprefix group/,$(ALL_TESTS))
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.DEFAULT_GOAL := help
.PHONY: help demo demo-distributed test notebooks test-hosts soak test-oldest bench lint clean $(GROUPS)

help:
	@sed -n 's/^#   //p' Makefile

demo demo-distributed: export TF_CPP_MIN_LOG_LEVEL = 3

demo: $(VENV)/.installed
	$(VENV)/bin/python -m npu_keras demo

demo-distributed: $(VENV)/.installed
	$(VENV)/bin/python -m npu_keras run -n 2 -m npu_keras.demo_distributed

# Every group runs, whatever became of another.
define run_tests
@echo "$(words $(TESTS)) groups of tests, $(JOBS) at a time: minutes of silence"
@$(MAKE) --no-print-directory --keep-going --jobs=$(JOBS) $(SYNC) $(addprefix group/,$(TESTS)) \
    TESTED=$(1)
endef

test: $(VENV)/.installed
	$(call run_tests,$(VENV))

$(GROUPS): group/%:
	@echo "== $*"; $(TESTED)/bin/python $(PYTEST) $*

# To run one and keep what it puts out: pytest --nbmake --overwrite notebooks/01_quickstart.ipynb
notebooks: $(VENV)/.installed
	$(VENV)/bin/python $(PYTEST) notebooks

# Skipped, with the reason, where network namespaces cannot be made.
test-hosts: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -rs $(HOST_TESTS)

# What it prints stands in the table of the README.
soak: $(VENV)/.installed
	SOAK=1 $(VENV)/bin/python -m pytest tests/faults
	$(VENV)/bin/python -m tests.faults.long_run --steps 200000
	$(VENV)/bin/python -m tests.faults.kills --kills 20
	$(VENV)/bin/python -m tests.faults.kills --kills 4 --engine mpi
	$(VENV)/bin/python -m tests.faults.growth
	$(VENV)/bin/python -m tests.faults.misfits

test-oldest: $(OLDEST)/.installed
	$(call run_tests,$(OLDEST))

bench: $(VENV)/.installed
	$(VENV)/bin/python -m benchmarks $(if $(QUICK),--quick)

lint: $(VENV)/.installed
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

$(VENV)/.installed: pyproject.toml
	@echo "Installing TensorFlow and the rest into $(VENV): some minutes, about 2.6 GB"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)/bin/python -m pip install --quiet -e '.[demo,mpi]' --group test --group lint \
	    --group notebooks
	touch $@

# Only uv can resolve to the lowest versions. The tools of the tests are as new as they come.
$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet uv
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python \
	    --resolution lowest-direct -e '.[demo,mpi]'
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python \
	    --group test --group notebooks
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) build dist demo .coverage* htmlcov
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find npu_keras tests -name __pycache__ -type d -prune -exec rm -rf {} +
