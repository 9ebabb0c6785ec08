PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-all lint bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip $(INSTALL) -e '.[dev]'
	touch $@

.venv-transformers4/ready: pyproject.toml constraints-transformers4.txt
	$(PYTHON) -m venv .venv-transformers4
	.venv-transformers4/bin/pip install --quiet --disable-pip-version-check -c constraints-transformers4.txt -e '.[dev]'
	touch $@

demo: $(VENV)/ready  ## a real small training run on this machine, with live numbers
	$(BIN)/python examples/transformers_llama.py

test: $(VENV)/ready  ## what a contributor runs
	$(BIN)/python -m pytest -m 'not slow' $(COVERAGE)

test-all: $(VENV)/ready .venv-transformers4/ready  ## the slow tests too, the wheel, and the oldest line of transformers
	$(BIN)/python -m pytest -m slow
	.venv-transformers4/bin/python -m pytest tests/doors --ignore-glob='*lightning*' --ignore=tests/doors/test_ranks.py

lint: $(VENV)/ready  ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/ready  ## what measuring costs, per step
	$(BIN)/python benchmarks/overhead.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) .venv-transformers4 out
