# `make help` lists the targets. Each target first runs scripts/setup.sh. If .venv is missing or out of date, setup.sh
# creates it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv lint format test test-airflow test-browser test-stores fuzz soak judge bench sources demo-s3 demo-hdfs dist docs lock clean

SETUP := . scripts/setup.sh
VENV_PYTHON := .venv/bin/python
MUTATIONS ?= 1000000
STORES ?= s3 azure hdfs

help: ## list the targets
	@echo "make TARGET; PYTHON=python3.12 chooses the Python of .venv"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1 \2/p' $(firstword $(MAKEFILE_LIST)) | \
	    while read -r target text; do printf '  %-16s %s\n' "$$target" "$$text"; done

venv: ## create .venv from requirements.lock
	@$(SETUP)

lint: ## check the code with ruff, ruff's formatter and mypy --strict; change no file
	@$(SETUP)
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

format: ## format the code, and let ruff fix what it can
	@$(SETUP)
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

test: lint ## lint, then run the tests; TESTS="tests/storage_engine -k roll" selects tests
	@$(SETUP); $(VENV_PYTHON) -m scripts.go_programs; $(VENV_PYTHON) -m pytest -n 3 --dist loadgroup $(TESTS)

test-stores: ## run the tests of stores, then all tests with roots on S3, then Azure (needs npm), then HDFS; STORES="s3 hdfs" and TESTS="..." select
	@$(SETUP); $(VENV_PYTHON) -m scripts.go_programs; $(VENV_PYTHON) -m pytest -m stores $(TESTS); for store in $(STORES); do echo "roots in $$store"; \
	    LAKELOG_TEST_STORE=$$store $(VENV_PYTHON) -m pytest -n 2 --dist loadgroup $(TESTS); done

test-browser: ## run only the tests that open Chromium; npm installs it if it is missing
	@$(SETUP); found=$$(command -v chromium chromium-browser google-chrome google-chrome-stable | head -n 1 || true); \
	    export CHROMIUM=$${CHROMIUM:-$$found}; \
	    [ -n "$$CHROMIUM" ] || CHROMIUM=$$($(VENV_PYTHON) -m scripts.install_chromium); \
	    $(VENV_PYTHON) -m pytest -m browser

test-airflow: ## load the DAG of deploy/ with Airflow, which this target installs once
	@$(SETUP); $(VENV_PYTHON) -m pytest -m airflow tests/deploy

fuzz: ## pass mutated files to every reader: 20,000 with bounds checks, then a million without; MUTATIONS=100000 SEED=7
	@$(SETUP); checked=$$(mktemp -d); trap 'rm -rf "$$checked"' EXIT; \
	    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$$checked \
	    $(VENV_PYTHON) -m tests.storage_engine.fuzz.fuzzing --mutations 20000 $(if $(SEED),--seed $(SEED)); \
	    $(VENV_PYTHON) -m tests.storage_engine.fuzz.fuzzing --mutations $(MUTATIONS) $(if $(SEED),--seed $(SEED))

soak: ## repeat the tests of faults, the model and the jobs' output, for hours; SEED=7, KILLS=10, SCHEDULES=20000, RUNS=5
	@$(SETUP); KILLS=$(or $(KILLS),50) BATCHES=$(or $(BATCHES),200) BROKER=1 $(if $(SEED),SEED=$(SEED)) \
	    $(VENV_PYTHON) -m pytest -s -m "slow or soak" tests/faults/processes tests/pipeline/ingest/test_ingest_processes.py
	@$(SETUP); KILLS=$(or $(KILLS),50) $(if $(SEED),SEED=$(SEED)) \
	    $(VENV_PYTHON) -m pytest -s tests/kafka/log_manager/test_processes.py
	@$(SETUP); $(VENV_PYTHON) -m tests.model.soak --schedules $(or $(SCHEDULES),20000) $(if $(SEED),--seed $(SEED))
	@$(SETUP); $(VENV_PYTHON) -m tests.faults $(if $(SHARE),--share $(SHARE)) $(if $(SEED),--seed $(SEED))
	@$(SETUP); $(VENV_PYTHON) -m tests.jobs.quiet_runs --runs $(or $(RUNS),20) --burners 4

judge: ## compare Lakelog's compaction, retention and log manager with Kafka's; LOGS=1000, DIRECTORIES=500, BROKERS=20, SEED=7
	@$(SETUP); $(VENV_PYTHON) -m tests.kafka.judge --logs $(or $(LOGS),1000) $(if $(SEED),--seed $(SEED)); \
	    $(VENV_PYTHON) -m tests.kafka.judge --retention --logs $(or $(LOGS),1000) $(if $(SEED),--seed $(SEED)); \
	    $(VENV_PYTHON) -m tests.kafka.log_manager.judge --directories $(or $(DIRECTORIES),500) $(if $(SEED),--seed $(SEED)); \
	    $(VENV_PYTHON) -m tests.kafka.log_manager.real_brokers --directories $(or $(BROKERS),20) $(if $(SEED),--seed $(SEED))

bench: ## run the benchmarks and write bench/results/
	@$(SETUP); $(VENV_PYTHON) -m bench

sources: ## ingest sample data from every source in conf/ into a new root, ./lakelog-sources
	@$(SETUP); $(VENV_PYTHON) -m scripts.try_sources

demo-s3: ## run the demo with its root in an S3 server, which this target starts
	@$(SETUP); $(VENV_PYTHON) -m scripts.demo_on_store s3

demo-hdfs: ## run the demo with its root in an HDFS, which this target starts
	@$(SETUP); $(VENV_PYTHON) -m scripts.demo_on_store hdfs

dist: ## write two files to dist/: the archive for the executors of a cluster, and a zip for spark-submit --py-files
	@$(SETUP); $(VENV_PYTHON) -m scripts.executor_archive --py-files

docs: ## write the generated pages of docs/
	@$(SETUP); $(VENV_PYTHON) -m docs.generate

lock: ## write requirements.lock again from pyproject.toml; UPGRADE=1 chooses newer versions
	@scripts/lock.sh $(if $(UPGRADE),--upgrade)

clean: ## delete .venv and the caches of tools
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
