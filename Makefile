PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: most of an installation never is. Images of containers tend to
# forbid Python to keep what it has compiled, and then each process of a test compiles torch anew, for ten seconds.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := install --quiet --disable-pip-version-check --no-compile
# A file is tested in one process, so that what its tests share is made once.
PARALLEL ?= -n logical --maxprocesses 4 --dist loadfile
TRANSFORMERS := tests/integrations -k '(transformers or trainer or trl) and not lightning' \
	--ignore tests/integrations/test_ranks.py --ignore tests/integrations/test_agreement.py
# The Pythons that are declared. Tests that import a framework are skipped: see tests/conftest.py.
PYTHONS ?= 3.10 3.12 3.13
LOWEST := $(addprefix tests/integrations/test_,contract.py transformers.py lightning.py accelerate.py) \
	tests/ranks/test_packed_parts.py tests/kernel/test_journal_ends.py tests/baseline/test_ledger.py \
	tests/properties/test_record_properties.py -m 'not slow'

.PHONY: help demo test test-all test-transformers4 test-lowest test-newest test-pythons lint lint-style lint-mypy lint-pyright docs tables bench mutants clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip $(INSTALL) -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/demo-ready

$(VENV)/demo-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip $(INSTALL) -c constraints.txt -e .
	touch $@

.venv-transformers4/ready: EXTRAS := dev
.venv-lowest/ready: EXTRAS := all,test
.venv-%/ready: pyproject.toml constraints-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip $(INSTALL) -c constraints-$*.txt -e '.[$(EXTRAS)]'
	touch $@

demo: $(VENV)/demo-ready  ## a real small training on this machine: live numbers, a verdict, its remedy, and a report
	$(BIN)/perf-callbacks demo

test: $(VENV)/ready  ## what a contributor runs
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow'

test-all: $(VENV)/ready  ## the slow tests, branch coverage of the others, older frameworks and Pythons; the wheel, and the site
	$(BIN)/python -m pytest $(PARALLEL) -m slow
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow' --cov --cov-report=term --cov-fail-under=90
	$(MAKE) --jobs 2 --output-sync=target test-transformers4 test-lowest
	$(MAKE) docs
	$(MAKE) test-pythons

test-transformers4: .venv-transformers4/ready
	.venv-transformers4/bin/python -m pytest $(PARALLEL) $(TRANSFORMERS)

test-lowest: .venv-lowest/ready
	.venv-lowest/bin/python -m pytest $(PARALLEL) $(LOWEST)
	.venv-lowest/bin/python -m pytest -m slow tests/test_wheel.py -k frameworks

test-newest:  ## the contract with the newest torch, transformers, lightning and accelerate, whatever is pinned
	[ -x .venv-newest/bin/pytest ] || { $(PYTHON) -m venv .venv-newest && .venv-newest/bin/pip $(INSTALL) -e '.[all,test]'; }
	.venv-newest/bin/pip $(INSTALL) --upgrade torch transformers lightning pytorch-lightning accelerate
	.venv-newest/bin/python -m pytest $(PARALLEL) $(filter tests/integrations/%,$(LOWEST)) -m 'not slow'

test-pythons:  ## what needs no torch, with each declared Python that this machine has
	@for version in $(PYTHONS); do \
		python=$$(command -v python$$version || ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python 2>/dev/null | head -1); \
		if ! "$$python" -c '' 2>/dev/null; then \
			python=$$(ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python 2>/dev/null | head -1); \
		fi; \
		if [ -z "$$python" ]; then echo "Python $$version is not on this machine: not tested"; continue; fi; \
		echo "Python $$version"; \
		[ -x .venv-$$version/bin/pytest ] || { "$$python" -m venv .venv-$$version && .venv-$$version/bin/pip $(INSTALL) \
			attrs hypothesis msgspec nvidia-ml-py pytest pytest-timeout pytest-xdist pyyaml rich typing-extensions; } || exit 1; \
		PYTHONPATH=src .venv-$$version/bin/python -m pytest --confcutdir tests $(PARALLEL) -m 'not slow and not needs_torch' tests || exit 1; \
	done

lint: $(VENV)/ready  ## format, lint, types, import directions
	$(MAKE) --jobs 2 lint-style lint-mypy lint-pyright

lint-style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

lint-mypy:
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/public.py

lint-pyright:
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/ready  ## the site of the documentation, in out/docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir out/doctrees docs out/docs

tables: $(VENV)/ready  ## write the tables of docs that come from registries
	PYTHONPATH=src $(BIN)/python tests/doc_tables.py

bench: $(VENV)/ready  ## what measuring costs, per step
	$(BIN)/python benchmarks/overhead.py

mutants: $(VENV)/ready  ## does the suite notice a changed line? Not fewer than before a change that removes
	nice $(BIN)/python tests/mutants.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) .venv-transformers4 .venv-lowest .venv-newest $(PYTHONS:%=.venv-%) out
