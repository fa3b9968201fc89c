# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

PYTEST := $(BIN)/python -m pytest
SKIPPED := .pytest_cache/skipped.txt
FAULTS := .pytest_cache/faults.jsonl
AT_ONCE := not alone and not clock and not matrix

.PHONY: help install install-test quickstart test test-at-once test-quick test-matrix test-gpu faults bench-self trust scale nightly lint clean

help:
	@echo "make quickstart   install, then static against dynamic on generated data: verdict, figures, report"
	@echo "make test         install with the test group, then every check that this machine can run"
	@echo "make test-quick   what a change needs first, in two minutes on 2 cores: no launches, nothing slow"
	@echo "make test-matrix  every strategy, schedule and layout through the command, and a rank of each killed"
	@echo "make faults       every fault that the tests plant, and the table of what was seen, tests/README.md"
	@echo "make test-gpu     what only a GPU can show"
	@echo "make bench-self   how long planning, analysing and --help take"
	@echo "make trust        forty comparisons of equal arms and of a planted slowdown: about an hour, nothing beside it"
	@echo "make scale        a JSON array of 1 GB tokenised, killed in the middle and gone on with: some minutes"
	@echo "make nightly      twenty thousand cases of bad input that nobody has seen: half an hour"
	@echo "make install      .venv with dynbench in it"
	@echo "make lint         ruff, mypy, import rules"
	@echo "make clean        remove .venv and caches"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing dynbench into $(VENV) (torch is the large part) ..."
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: constraints.txt $(VENV)/.installed
	@echo "installing the test tools ..."
	$(PIP) --requirement tests/requirements.txt
	@touch $@

install: $(VENV)/.installed

install-test: $(VENV)/.installed-test

quickstart: install
	$(BIN)/dynbench compare recipes/quickstart.yaml

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# First what may run side by side, on two cores, lint among it; then what compares times, with the machine to itself.
test: install-test
	@mkdir -p $(dir $(SKIPPED)) && rm -f $(SKIPPED)
	@$(MAKE) --no-print-directory --jobs 2 lint test-at-once
	$(PYTEST) --durations 25 --skipped-to $(SKIPPED) -m "alone" tests/multiproc
	@cat $(SKIPPED) 2>/dev/null || echo "nothing was skipped"
	@echo "no part of this: make bench-self, which reads the clock"

test-at-once: install-test
	OMP_NUM_THREADS=1 $(PYTEST) --durations 25 --numprocesses 2 --dist loadgroup --skipped-to $(SKIPPED) -m "$(AT_ONCE)"

test-quick: install-test
	OMP_NUM_THREADS=1 $(PYTEST) --numprocesses 2 -m "not slow and not multiproc and not gpu and not clock and not matrix"

test-matrix: install-test
	OMP_NUM_THREADS=1 $(PYTEST) --numprocesses 2 --dist load -m matrix tests

# Those of `alone` compare no times here, so that nothing keeps them from running one after the other.
faults: install-test
	@mkdir -p $(dir $(FAULTS)) && rm -f $(FAULTS)
	$(BIN)/python tests/fault_table.py tests | tr '\n' '\0' | OMP_NUM_THREADS=1 xargs -0 $(PYTEST) -q --faults-to $(FAULTS)
	$(BIN)/python tests/fault_table.py write $(FAULTS)

test-gpu: install-test
	$(PYTEST) -m gpu tests/gpu

trust: install-test
	$(BIN)/python tests/trust/trust.py results/trust

scale: install-test
	$(BIN)/python tests/scale/json_array.py results/scale

# Two at a time, as nothing here compares times; what is found is drawn again first the next time.
nightly: install-test
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=search DYNBENCH_BAD_INPUT=20000 $(PYTEST) --numprocesses 2 tests/unit/cli/test_bad_input_fuzzed.py

bench-self: install-test
	$(PYTEST) --capture no -m clock tests/unit

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
