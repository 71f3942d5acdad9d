# Two commands for a new machine: `make quickstart` and `make test`. Each does its own set-up.
PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart test check docs suite bench release clean help

help: ## what there is to make
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed

quickstart: $(VENV)/.installed ## install, train on Cora, print the probe's accuracy, write runs/cora
	$(BIN)/graphcl train cora --out runs/cora --overwrite

check: $(VENV)/.installed-dev docs ## lint, format, types, layers, the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: $(VENV)/.installed-dev ## everything CI runs: what runs alone, then checks and tests at once
	$(BIN)/python -m pytest -m alone
	$(MAKE) --no-print-directory -j 2 check suite

suite: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 3 -m "not alone"

bench: $(VENV)/.installed-dev ## speed on this CPU against rivals and floors, under 3 minutes
	$(BIN)/python -m benchmarks.cpu --out benchmarks/results/cpu.jsonl

release: $(VENV)/.installed-dev ## sdist and wheel in dist/, checked, and tried in a clean environment
	$(PIP) build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	scripts/try_release.sh $(PYTHON)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
