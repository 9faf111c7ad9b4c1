# `make demo` and `make test` need Python 3.11 or newer and make: they create .venv, install what they use and do their
# job. The files .package, .develop and .oracles in it say what stands there, so a second call installs nothing.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=
BIN := $(VENV)/bin
BENCH_VENV := $(VENV)-bench
PACKAGE := pyproject.toml src/credo/_version.py
# One worker keeps a file's tests together: they share compiled programs.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile
# How the core tests compile; `make unit QUICKEST=` compiles as users do.
QUICKEST = XLA_FLAGS="$$($(BIN)/python tests/xla_flags.py)"
# Half of a test's time is compilation: what any worker has compiled, or an earlier run, is read from COMPILED.
COMPILED ?= $(abspath $(VENV))/compiled
REUSED = JAX_COMPILATION_CACHE_DIR=$(COMPILED) JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0

export MPLBACKEND ?= Agg

.PRECIOUS: %/.created %/.develop
.PHONY: help demo test lint unit shapes slow scale examples gallery docs bench

help:
	@echo "make demo      compare several approximations of one posterior on the breast-cancer table (into demo/)"
	@echo "make test      linters, types and the core tests"
	@echo "make slow      the longer tests and those against peer libraries"
	@echo "make scale     every method on 100,000 rows and on 1,000 parameters, minutes each"
	@echo "make examples  run every program of examples/"
	@echo "make gallery   the examples' pictures of docs/gallery.md, drawn again"
	@echo "make docs      the documentation as pages (into site/)"
	@echo "make bench     hours: cost of a trusted posterior against other libraries (into .venv-bench)"
	@echo "make lint, make unit: the two halves of make test"
	@echo "make shapes    the core tests with every shaped type checked at run time"

demo: $(VENV)/.package
	$(BIN)/credo compare breast_cancer --out demo

test: lint unit

lint: $(VENV)/.develop
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: $(VENV)/.develop
	$(QUICKEST) $(REUSED) $(PYTEST) -m "not slow and not oracle and not scale" $(PYTEST_ARGS)

shapes: $(VENV)/.develop
	$(QUICKEST) $(REUSED) $(PYTEST) -m "not slow and not oracle and not scale" --jaxtyping-packages=credo,beartype.beartype $(PYTEST_ARGS)

# pytest leaves with 5 where no test carries the marker.
slow: $(VENV)/.oracles
	$(REUSED) $(PYTEST) -m "slow or oracle" $(PYTEST_ARGS) || [ $$? -eq 5 ]

scale: $(VENV)/.develop
	$(BIN)/python -m pytest -m scale $(PYTEST_ARGS)

examples: $(VENV)/.examples
	@set -e; for example in $(sort $(wildcard examples/*.py)); do echo "$$example"; $(BIN)/python "$$example"; done

gallery: $(VENV)/.examples
	@set -e; for example in $(sort $(wildcard examples/*.py)); do \
	  $(BIN)/python "$$example" docs/pictures/$$(basename "$$example" .py).png; done

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(BENCH_VENV)/.bench
	$(BENCH_VENV)/bin/python benchmarks/mcmc.py
	$(BENCH_VENV)/bin/python benchmarks/road.py --models

%/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Credo needs Python 3.11 or newer, which" \
	  "'$(PYTHON)' is not. Name another interpreter: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(@D)
	@touch $@

%/.package: $(PACKAGE) | %/.created
	$(@D)/bin/python -m pip install --quiet --editable .
	@touch $@

%/.develop: $(PACKAGE) | %/.created
	$(@D)/bin/python -m pip install --quiet --editable '.[test,dev,enumeration]'
	@touch $@ $(@D)/.package

%/.oracles: $(PACKAGE) constraints.txt | %/.develop
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[oracles]'
	@touch $@

%/.docs: $(PACKAGE) | %/.created
	$(@D)/bin/python -m pip install --quiet --editable '.[docs]'
	@touch $@

%/.examples: $(PACKAGE) constraints.txt | %/.created
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[examples]'
	@touch $@ $(@D)/.package

%/.bench: $(PACKAGE) constraints.txt | %/.created
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@
