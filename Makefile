# Every target that needs anything runs `setup` first; it is quick when nothing is missing.

BIN := .venv/bin
ARGS ?=
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-analytics up test check bench images docs lock clean

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

test: setup ## run all tests (ARGS="-k topics" for some, JOBS=0 for one at a time)
	@$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: setup ## format, lint, types, unit and property tests, fifty random schedules: run this before you commit
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder tests/property tests/unit $(ARGS)
	@$(BIN)/tidegate simulate --seeds 50

bench: setup ## measure the data plane beside a bare shovel and federation
	@$(BIN)/tidegate bench dataplane $(ARGS)

docs: setup ## write what is made from the code: pages of docs, dashboards
	@$(BIN)/python scripts/docs.py

images: ## build the Docker images of brokers and of analytics
	@docker build -f deploy/images/Dockerfile --target tidegate -t tidegate:local .
	@docker build -f deploy/images/Dockerfile --target analytics -t tidegate-analytics:local .

lock: ## renew the pins in constraints.txt (needs uv)
	@scripts/lock.sh

clean: ## remove the virtual environment and everything else that was made
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
