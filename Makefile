# `make demo` and `make test` are all that a fresh machine with Python 3.11 or newer and make needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint types clean

demo: $(STAMP)  ## Shared against isolated policies in teams of small language models: a table and a report.
	$(BIN)/jaxmarl-llm ablate quick

test: $(STAMP)  ## The fast tests (under ten minutes on two cores).
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not wide"

test-all: $(STAMP)  ## All tests, the slow ones too.
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/basedpyright

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .jax_cache .pytest_cache .ruff_cache build dist *.egg-info
