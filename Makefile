# Every target that needs anything runs `setup` first; it is quick when nothing is missing.

BIN := .venv/bin
ARGS ?=
PROCESSORS := $(shell nproc)

# Tests start many processes: compile their modules once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-analytics up test check audit bench images docs lock clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 21

setup: ## make .venv, install the pinned packages and, if they are missing, RabbitMQ and Java
	@scripts/setup.sh

demo: setup ## start a cluster on real RabbitMQ, let a burst come, watch who is moved and why, clean up
	@$(BIN)/tidegate demo $(ARGS)

demo-analytics: setup ## the same seen by Spark: a cluster, a burst, streaming jobs, and a report to look at
	@$(BIN)/tidegate analytics demo --out build/report $(ARGS)

up: setup ## start a cluster and keep it running until Ctrl-C
	@$(BIN)/tidegate up --compact $(ARGS)

# As many files at a time as there are processors: with more, tests of deadlines make each other late.
test: JOBS ?= $(PROCESSORS)
test: setup ## run all tests (ARGS="-k topics" for some, JOBS=0 for one at a time)
	@$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: JOBS ?= $(PROCESSORS)
check: setup ## format, lint, types, unit and property tests, fifty random schedules, audit: run this before you commit
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder tests/property tests/unit $(ARGS)
	@$(BIN)/tidegate simulate --seeds 50
	@$(BIN)/python scripts/audit.py

audit: setup ## look for known flaws in the pinned packages (part of check)
	@$(BIN)/python scripts/audit.py

bench: setup ## measure the data plane beside a bare shovel and federation
	@$(BIN)/tidegate bench dataplane $(ARGS)

docs: setup ## write what is made from the code: pages of docs, dashboards
	@$(BIN)/python scripts/docs.py

# As in .env, which docker-compose.yml reads; the environment wins.
PYTHON_IMAGE ?= $(shell sed -n 's/^PYTHON_IMAGE=//p' .env)
export PYTHON_IMAGE
BUILD = docker build -f deploy/images/Dockerfile --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) --build-arg PIP_INDEX_URL=$(PIP_INDEX_URL)

images: ## build the Docker images of brokers and of analytics, and lists of what they hold (build/sbom-*.json)
	@$(BUILD) --target tidegate -t tidegate:local .
	@$(BUILD) --target analytics -t tidegate-analytics:local .
	@scripts/sbom.sh

lock: ## renew versions and hashes in the lock files (ARGS=--keep: only what is new)
	@scripts/lock.sh $(ARGS)

clean: ## remove the virtual environment and everything else that was made
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
