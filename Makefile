# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# An index of torch's builds for GPUs, as https://download.pytorch.org/whl/cu126; the newest torch there, and all else
# as constraints.txt has it.
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
LIMITS := $(VENV)/constraints.txt

PYTEST := $(BIN)/python -m pytest
SKIPPED := .pytest_cache/skipped.txt
FAULTS := -v -m fault tests/multiproc
AT_ONCE := not alone and not clock and not matrix
COVERED := schedule analysis config runs compress
SOAK_MINUTES ?= 30
MUTANTS ?=
ONLY ?=
# Without the compiled modules beside the sources every process compiles torch again, which doubles what a launch takes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install install-test install-more quickstart test test-at-once test-quick golden accept-values accept-words \
	test-matrix test-gpu first-gpu faults faults-left bench-self trust scale soak coverage mutation wheel-test nightly \
	lint clean

help: ## this list
	@sed -nE 's/^([a-z][a-z -]*):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target meaning; do printf 'make %-27s %s\n' "$$target" "$$meaning"; done

# The pip that Python 3.11 comes with takes twice as long over the same packages.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

define INSTALL
@echo "installing dynbench into $(VENV) (torch is the large part) ..."
grep -vE '$(if $(TORCH_INDEX),^(torch|triton)==,^#)' constraints.txt > $(LIMITS)
$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) torch)
$(PIP) --constraint $(LIMITS) --editable $(1)
@touch $(VENV)/.installed
endef

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(call INSTALL,.)

# At once, as pip takes as long to find out what is there already as what is not.
$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(call INSTALL,'.[test]')
	@touch $@

$(VENV)/.installed-more: constraints.txt $(VENV)/.installed-test
	@echo "installing the tools of coverage and mutation ..."
	$(PIP) --constraint $(LIMITS) --editable '.[mutation]'
	@touch $@

# One process compiles the large packages while lint runs; otherwise each test process would.
$(VENV)/.compiled: $(VENV)/.installed-test
	@$(BIN)/python -c "import datasets, matplotlib.figure, polars, scipy.stats, torch.distributed.optim, transformers.modeling_utils"
	@touch $@

install: $(VENV)/.installed ## .venv with dynbench (TORCH_INDEX=https://download.pytorch.org/whl/cu126 for an older GPU driver)

install-test: $(VENV)/.installed-test ## the same with the test tools

install-more: $(VENV)/.installed-more

quickstart: install ## install, then static against dynamic on generated data: verdict, figures, report
	$(BIN)/dynbench compare recipes/quickstart.yaml

lint: install-test ## ruff, mypy, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# First what may run side by side, on two cores, lint among it; then what compares times, with the machine to itself.
test: install-test ## install with the test tools, then every check that this machine can run
	@mkdir -p $(dir $(SKIPPED)) && rm -f $(SKIPPED)
	@$(MAKE) --no-print-directory --jobs 2 lint test-at-once
	$(PYTEST) --durations 25 --skipped-to=$(SKIPPED) -m "alone and not matrix" tests/multiproc
	@cat $(SKIPPED) 2>/dev/null || echo "nothing was skipped"
	@echo "no part of this: make bench-self, which reads the clock"

# Three on two cores: launches wait, for each other and for what ends them.
test-at-once: $(VENV)/.compiled
	OMP_NUM_THREADS=1 $(PYTEST) --durations 25 --numprocesses 3 --dist loadgroup --skipped-to=$(SKIPPED) -m "$(AT_ONCE)"

test-quick: install-test ## what a change needs first, in 80 seconds on 2 cores: no launches, nothing slow
	OMP_NUM_THREADS=1 $(PYTEST) --numprocesses 2 -m "not slow and not multiproc and not gpu and not clock and not matrix"

golden: install-test ## what differs from the accepted values and words of tests/golden (ONLY='sync help' for some)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m golden show $(ONLY)

accept-values accept-words: accept-%: install-test ## take what there is now in their place, and print it
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m golden accept $* $(ONLY)

test-matrix: install-test ## every member of the families that make test samples, but faults
	OMP_NUM_THREADS=1 $(PYTEST) --numprocesses 2 --dist load -m "matrix and not fault and not alone" tests
	$(PYTEST) -m "matrix and alone" tests/multiproc

# Those of `alone` compare no times here: they may run one after the other.
faults: install-test ## every fault that the tests plant, and how each ended
	OMP_NUM_THREADS=1 $(PYTEST) $(FAULTS)

faults-left: install-test ## where some of these failed: them once more
	OMP_NUM_THREADS=1 $(PYTEST) --last-failed --last-failed-no-failures none $(FAULTS) || [ $$? -eq 5 ]

test-gpu: install-test ## what only a GPU can show
	$(PYTEST) -m gpu tests/gpu

first-gpu: install-test ## the first run on GPUs: commands of every kind, and a page to send (DEVICE=cpu without any)
	$(BIN)/python tests/gpu/first.py "$(or $(OUT),results/first_gpu)" --device $(or $(DEVICE),cuda)

trust: install-test ## ten comparisons of equal arms and of planted slowdowns: half an hour, nothing beside it
	$(BIN)/python tests/trust/trust.py results/trust

scale: install-test ## a JSON array of 1 GB tokenised, killed in the middle and gone on with: some minutes
	$(BIN)/python tests/scale/json_array.py results/scale

soak: install-test ## 30 minutes of training (SOAK_MINUTES=3 for fewer): memory and open files stay what they were
	PYTHONPATH=tests $(BIN)/python -m scale.soak results/soak --minutes $(SOAK_MINUTES)

# A report of all packages first; then each of those that are held to it.
coverage: install-more ## lines and branches that tests/unit runs; fails below 90 % of schedule, analysis, config, runs, compress
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest --numprocesses 2 -m "$(AT_ONCE)" tests/unit
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort cover
	@for part in $(COVERED); do \
		echo "$$part: $$($(BIN)/coverage report --include "dynbench/$$part/*" --format total --precision 1) % of lines and branches"; \
		$(BIN)/coverage report --include "dynbench/$$part/*" --fail-under 90 > /dev/null || failed="$$failed $$part"; \
	done; test -z "$$failed" || { echo "below 90 %:$$failed"; exit 1; }

# It goes on where it was stopped. What no test kills is read with .venv/bin/mutmut results, and why in
# tests/mutation/survivors.md.
mutation: install-more ## mutants of the scheduler and of the statistics: hours (MUTANTS='dynbench.analysis.stats*' for some)
	set -f; OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 2 $(MUTANTS)

wheel-test: ## the wheel in an empty environment: commands and the quickstart
	$(PYTHON) tests/wheel/installed.py

# Two at a time, as nothing here compares times; what is found is drawn again first the next time.
nightly: faults test-matrix scale soak coverage wheel-test ## every fault, 20,000 new cases of bad input, and all that takes long but mutation: some hours
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=search DYNBENCH_BAD_INPUT=20000 $(PYTEST) --numprocesses 2 tests/unit/cli/test_bad_input_fuzzed.py

bench-self: install-test ## how long planning, analysing and --help take
	$(PYTEST) --capture no -m clock tests/unit

clean: ## remove .venv and caches
	rm -rf $(VENV) mutants .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
