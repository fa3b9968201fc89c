# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help install install-test quickstart test lint clean

help:
	@echo "make quickstart   install, then static against dynamic on generated data: verdict, figures, report"
	@echo "make test         install with the test group, then every check that needs no GPU"
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

test: install-test lint
	$(BIN)/python -m pytest -m "not gpu" tests/multiproc
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" --numprocesses 2 --dist worksteal tests/unit tests/contract

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
