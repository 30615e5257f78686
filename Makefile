# make setup | demo | test | format | clean.   Needs Python >= 3.10 and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "saffu needs Python 3.10 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/saffu train --out demo-model --force
	$(BIN)/saffu eval demo-model
	$(BIN)/saffu generate demo-model --count 5 --seed 1

test: setup
	$(BIN)/ruff check src tests docs/*.py
	$(BIN)/ruff format --check src tests docs/*.py
	$(BIN)/mypy
	$(BIN)/python -m pytest

format: setup
	$(BIN)/ruff check --fix src tests docs/*.py
	$(BIN)/ruff format src tests docs/*.py
	$(BIN)/python docs/make_api.py

clean:
	rm -rf $(VENV) demo-model build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
