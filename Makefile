# make help lists the targets. Each one sets .venv up first (scripts/setup.sh), which is immediate where it is there.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv lint format test test-browser fuzz soak judge bench sources docs lock clean

SETUP := . scripts/setup.sh
VENV_PYTHON := .venv/bin/python
MUTATIONS ?= 1000000

help: ## list these targets
	@echo "make TARGET; PYTHON=python3.12 chooses the Python of .venv"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1 \2/p' $(firstword $(MAKEFILE_LIST)) | \
	    while read -r target text; do printf '  %-13s %s\n' "$$target" "$$text"; done

venv: ## make .venv from requirements.lock
	@$(SETUP)

lint: ## ruff, its formatter and mypy --strict, changing nothing
	@$(SETUP)
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

format: ## let ruff format and mend what it can
	@$(SETUP)
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

test: lint ## lint, then the tests; TESTS="tests/storage_engine -k roll" chooses some
	@$(SETUP); $(VENV_PYTHON) -m pytest -n 2 --dist loadgroup $(TESTS)

test-browser: ## the tests that open Chromium; they fail where there is none, of which `make test` only tells
	@$(SETUP); found=$$(command -v chromium chromium-browser google-chrome google-chrome-stable | head -n 1 || true); \
	    CHROMIUM=$${CHROMIUM:-$${found:-chromium}} $(VENV_PYTHON) -m pytest -m browser

fuzz: ## a million mutated files through every reader, some first with bounds checks; MUTATIONS=100000 SEED=7
	@$(SETUP); checked=$$(mktemp -d); trap 'rm -rf "$$checked"' EXIT; \
	    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$$checked \
	    $(VENV_PYTHON) -m tests.storage_engine.fuzz.fuzzing --mutations 20000 $(if $(SEED),--seed $(SEED)); \
	    $(VENV_PYTHON) -m tests.storage_engine.fuzz.fuzzing --mutations $(MUTATIONS) $(if $(SEED),--seed $(SEED))

soak: ## the fault tests, the model and the jobs' standard error, for hours; SEED=7, KILLS=10, SCHEDULES=20000, RUNS=5
	@$(SETUP); KILLS=$(or $(KILLS),50) BATCHES=$(or $(BATCHES),200) BROKER=1 $(if $(SEED),SEED=$(SEED)) \
	    $(VENV_PYTHON) -m pytest -s -m "slow or soak" tests/faults/processes tests/pipeline/ingest/test_ingest_processes.py
	@$(SETUP); $(VENV_PYTHON) -m tests.model.soak --schedules $(or $(SCHEDULES),20000) $(if $(SEED),--seed $(SEED))
	@$(SETUP); $(VENV_PYTHON) -m tests.faults $(if $(SHARE),--share $(SHARE)) $(if $(SEED),--seed $(SEED))
	@$(SETUP); $(VENV_PYTHON) -m tests.jobs.quiet_runs --runs $(or $(RUNS),20) --burners 4

judge: ## Kafka's own cleaner and retention beside ours on random logs; LOGS=1000, SEED=7
	@$(SETUP); $(VENV_PYTHON) -m tests.kafka.judge --logs $(or $(LOGS),1000) $(if $(SEED),--seed $(SEED)); \
	    $(VENV_PYTHON) -m tests.kafka.judge --retention --logs $(or $(LOGS),1000) $(if $(SEED),--seed $(SEED))

bench: ## the benchmarks
	@$(SETUP); $(VENV_PYTHON) -m bench

sources: ## ingest sample data from every source in conf/, into a new ./lakelog-sources
	@$(SETUP); $(VENV_PYTHON) -m scripts.try_sources

docs: ## write the generated parts of docs/
	@$(SETUP); $(VENV_PYTHON) -m docs.generate

lock: ## resolve requirements.lock anew from pyproject.toml; UPGRADE=1 takes newer versions
	@scripts/lock.sh $(if $(UPGRADE),--upgrade)

clean: ## remove .venv and what tools left
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
