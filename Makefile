# Everything a user or CI does with the project; `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install jars sample demo ui test test-system test-all snapshots dbt s3-server gcs-server azure-server torture mutants check bench bench-peers bench-tpch drill soak docs links lock clean

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin

# `make demo` and `make ui` work on sample data unless the caller's environment says otherwise.
export DAGSTER_HOME ?= $(CURDIR)/.dagster
export BACKFILL_ASSETS_WAREHOUSE ?= $(CURDIR)/data/warehouse
ifndef BACKFILL_ASSETS_LANDING
export BACKFILL_ASSETS_LANDING := $(CURDIR)/data/landing
# The sample's calendar ends; without an end, every day up to yesterday would be missing.
demo: export BACKFILL_ASSETS_END ?= 2024-01-22
ui: export BACKFILL_ASSETS_END ?= 2024-01-29
endif
DEMO_DAYS := 2024-01-01...2024-01-21
# What a step says reaches the terminal through another process. Dagster ends this process with the
# step, and waits so many seconds first. Without the wait, the last lines of a step may be missing.
demo: export DAGSTER_COMPUTE_LOG_TAIL_WAIT_AFTER_FINISH ?= 0.5

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## make .venv with everything the project needs to run

# Exact versions of everything, of what the dependencies depend on as well, and their SHA-256: an
# install of today is that of tomorrow, whatever an index has by then. Environment markers say what
# is meant for which platform and Python.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
# The files have all that is needed: nothing else is looked for, not even to build what has no wheel.
LOCKED := --require-hashes --no-deps --no-build-isolation -r

$(VENV)/.installed: pyproject.toml requirements.lock requirements-build.lock
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.11 to 3.13 or run make PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { echo "Python 3.11 to 3.13 is needed and $(PYTHON) is $$($(PYTHON) -V 2>&1): run make PYTHON=/path/to/python." >&2; exit 1; }
	@echo "Making .venv and installing (a few minutes the first time) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "Making .venv failed: on Debian, apt-get install python3-venv." >&2; exit 1; }
	@$(PIP_INSTALL) -q $(LOCKED) requirements-build.lock
	@$(PIP_INSTALL) --progress-bar off $(LOCKED) requirements.lock | sed -un 's/^\(Collecting\|Installing\|Successfully\) .*/  &/p' | cut -c1-100
	@$(PIP_INSTALL) -q --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	@echo "Installing what the tests need ..."
	@$(PIP_INSTALL) -q $(LOCKED) requirements-dev.lock
	@touch $@

jars: install ## download the Delta jars and archive the engine's classes, once
	@$(BIN)/backfill-assets jars

# Only where there is none: DAGSTER_HOME may be an instance of the caller's own.
$(DAGSTER_HOME)/dagster.yaml:
	@mkdir -p -m 700 $(DAGSTER_HOME)
	@cp dagster.yaml $@

sample: install ## write sample landing data (unless there is some)
	@$(BIN)/backfill-assets sample

demo: jars sample $(DAGSTER_HOME)/dagster.yaml ## install, load three weeks of sample orders and show what was published
	@$(BIN)/backfill-assets materialize $(DEMO_DAYS)
	@$(BIN)/backfill-assets show

ui: sample $(DAGSTER_HOME)/dagster.yaml ## the Dagster UI on the same data, at http://127.0.0.1:3000
	@$(BIN)/backfill-assets ui --port $${PORT:-3000}

# Marks of the tests to run. CI runs all but the slow ones in one session: MARKERS='not slow'.
MARKERS ?= not slow and not system
# CPU seconds of a test outside system/, at most.
CPU_LIMIT ?= 60
# Whole files go to a process, longest first; the third has the cores while tests wait for servers and
# daemons. Times of all tests are kept with their results.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
test: $(VENV)/.installed-dev ## install what the tests need and run those of code and tables
	@$(BIN)/backfill-assets jars
	@$(PYTEST) -m '$(MARKERS)' --cpu-limit $(CPU_LIMIT) --junitxml=build/junit/$@.xml $(ARGS)

test-system: $(VENV)/.installed-dev ## the tests of whole deployments: kills, nights, commands, servers
	@$(BIN)/backfill-assets jars
	@$(PYTEST) -m 'system and not slow' --junitxml=build/junit/$@.xml $(ARGS)

test-all: $(VENV)/.installed-dev docs dbt ## all tests there are, the slow ones too (hours); needs the servers
	@$(BIN)/backfill-assets jars
	@$(PYTEST) -m '' --timeout 3600 --junitxml=build/junit/$@.xml $(ARGS)

# The ends of the ranges in pyproject.toml, each in an environment of its own below build/versions.
# All extras but `postgres`, whose range begins later than Dagster's. Warnings are the libraries'.
ENDS ?= lowest-direct highest
CORE_TESTS ?= contracts/test_golden_rows.py contracts/test_commits.py contracts/test_words.py \
	contracts/test_public_api.py test_io_manager.py test_definitions.py test_host_project.py \
	test_ledgers.py test_publisher.py test_metrics.py test_lineage.py test_lookups.py \
	system/test_pipeline.py
TEST_TOOLS := pytest pytest-timeout selenium pytest-xdist hypothesis syrupy xxhash duckdb psycopg2-binary
UV := UV_PYTHON_DOWNLOADS=never $(BIN)/uv
test-versions: $(VENV)/.installed-dev ## the core on the lowest and the highest versions of pyproject.toml (half an hour)
	@mkdir -p build/versions
	@for tool in $(TEST_TOOLS); do sed -n "s/^\($$tool==[^ ]*\) .*/\1/p" requirements-dev.lock; done >build/versions/tools.txt
	@for end in $(ENDS); do \
		env=build/versions/$$end; \
		$(UV) pip compile -q --upgrade --python $(BIN)/python --resolution $$end -o $$env.txt \
			-c requirements-build.lock pyproject.toml build/versions/tools.txt \
			--extra serve --extra lookups --extra openlineage >/dev/null; \
		$(UV) venv -q --clear --python $(BIN)/python $$env; \
		$(UV) pip install -q --python $$env/bin/python -r $$env.txt -r requirements-build.lock; \
		$(UV) pip install -q --python $$env/bin/python --no-deps --no-build-isolation -e .; \
		$$env/bin/backfill-assets jars; \
		$$env/bin/python -m pytest -W default --disable-warnings -n 2 --dist loadfile \
			--junitxml=build/junit/$@-$$end.xml $(addprefix backfill_assets_tests/,$(CORE_TESTS)) $(ARGS); \
		grep -E '^(dagster|dagster-pyspark|pyspark|delta-spark|deltalake|pandas|pyarrow|pydantic|pandera|msgspec)==' $$env.txt; \
	done

# dbt-core takes pathspec below 0.13, and mypy from 1.0: an environment of its own, above the other.
dbt: build/dbt/.installed ## install dbt, for the test of models that read the tables
DBT_INSTALL := build/dbt/bin/python -m pip install --disable-pip-version-check
PURELIB := import sysconfig; print(sysconfig.get_path('purelib'))
build/dbt/.installed: $(VENV)/.installed-dev requirements-dbt.lock
	@$(BIN)/python -m venv --without-pip --clear build/dbt
	@below="$$($(BIN)/python -c "$(PURELIB)")"; \
		echo "import site; site.addsitedir('$$below')" >"$$(build/dbt/bin/python -c "$(PURELIB)")/below.pth"
	@$(DBT_INSTALL) -q $(LOCKED) requirements-dbt.lock
	@touch $@

snapshots: $(VENV)/.installed-dev ## renew the snapshots of what users rely on, after an intended change
	@$(BIN)/backfill-assets jars
	@$(BIN)/python -m pytest -m 'not slow' --snapshot-update backfill_assets_tests/contracts $(ARGS)

s3-server: ## build the S3 server that the tests of object storage need, once; needs Go
	@.ci/s3-server

gcs-server: ## build the Google Cloud Storage that the tests of object storage need, once; needs Go
	@.ci/gcs-server

azure-server: ## install the Azure storage that the tests of object storage need, once; needs Node.js
	@.ci/azure-server

torture: $(VENV)/.installed-dev ## the slow tests in their long forms (hours): 100 races, 120 nights of CDNOW, 200 lives
	@$(BIN)/backfill-assets jars
	@BACKFILL_TEST_NIGHTS=120 BACKFILL_TEST_HISTORIES=5 BACKFILL_TEST_RACES=100 \
		BACKFILL_TEST_UNDOS=12 BACKFILL_TEST_UNDO_SEEDS=5 BACKFILL_TEST_UNDO_LIVES=200 \
		BACKFILL_TEST_LIVES=200 BACKFILL_TEST_LIFE_STEPS=15 \
		BACKFILL_TEST_ARRIVALS=12 BACKFILL_TEST_ARRIVAL_DAYS=20 \
		BACKFILL_TEST_KILL_DAYS=180 BACKFILL_TEST_KILLS=20 BACKFILL_TEST_HOUR_DAYS=30 \
		BACKFILL_TEST_SEEDS=20 \
		$(BIN)/python -m pytest -s --timeout 14400 -m 'slow or torture' $(ARGS)

mutants: $(VENV)/.installed-dev ## change the code that decides, bit by bit: does a test fail? ARGS=calendar
	@$(BIN)/python -m backfill_assets_tests.mutants $(ARGS)

# .pre-commit-config.yaml runs the same before a commit.
check: $(VENV)/.installed-dev ## lint, format, types, the order of the rooms, declared dependencies, names
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m backfill_assets_tests.typed_project
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/deptry backfill_assets backfill_assets_guide
	@$(BIN)/deptry backfill_assets_tests --ignore DEP002,DEP004
	@$(BIN)/python -m backfill_assets_tests.code_shape

bench: $(VENV)/.installed-dev ## measure: ours against a hand-written PySpark job (hours); ARGS='--part load small'
	@$(BIN)/backfill-assets jars
	@$(BIN)/python -m backfill_assets_tests.benchmarks.bench $(ARGS)

bench-peers: $(VENV)/.installed-dev ## measure other tools beside ours (an hour and more); ARGS='--days 12 --lines 500'
	@$(BIN)/backfill-assets jars
	@$(BIN)/python -m backfill_assets_tests.benchmarks.peers.bench_peers $(ARGS)

bench-tpch: $(VENV)/.installed-dev ## measure steps of a stream of TPC-H, rows against DuckDB's (15 minutes); ARGS='--scale 0.1 --days 90'
	@$(BIN)/backfill-assets jars
	@$(BIN)/python -m backfill_assets_tests.benchmarks.tpch.bench_tpch $(ARGS)

drill: $(VENV)/.installed-dev ## break things on purpose, find and mend them: all drills, or ARGS=doubled
	@$(BIN)/backfill-assets jars
	@$(BIN)/python -m backfill_assets_tests.drills.drills $(ARGS)

soak: $(VENV)/.installed-dev ## a deployment lives through weeks of arrivals, with kills: ARGS='--days 60'
	@$(BIN)/backfill-assets jars
	@$(BIN)/python -m backfill_assets_tests.drills.soak $(ARGS)

$(VENV)/.installed-docs: $(VENV)/.installed requirements-docs.lock
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' || { echo "make docs needs Python 3.11.5 or later and .venv has $$($(BIN)/python -V 2>&1)." >&2; exit 1; }
	@echo "Installing what the documentation needs ..."
	@$(PIP_INSTALL) -q $(LOCKED) requirements-docs.lock
	@touch $@

docs: $(VENV)/.installed-docs ## build the documentation into site/; a warning fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@touch site/.built # the tests of the pages read this build while nothing newer is in docs/
	@echo "Built site/index.html (its search needs a web server: python3 -m http.server -d site)"

# Not for CI: it needs the network, and pages of others come and go.
links: docs ## see that the pages answer that the documentation links to
	@$(UV) tool run -q --from linkchecker==10.6.0 linkchecker --check-extern --no-status --timeout 15 site/index.html

# For the oldest Python that all the extras install on; the versions that the files have are kept as
# long as pyproject.toml allows, unless ARGS=--upgrade. What several files have is of one
# version in all.
LOCK := UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile -q --universal --python-version 3.11.5 \
	--generate-hashes --annotation-style line --custom-compile-command 'make lock'
RUN_EXTRAS := --extra serve --extra lookups
lock: $(VENV)/.installed-dev ## remake the lock files from the ranges and pins in pyproject.toml
	@$(LOCK) $(ARGS) --group build -o requirements-build.lock >/dev/null
	@$(LOCK) $(ARGS) pyproject.toml $(RUN_EXTRAS) -o requirements.lock >/dev/null
	@$(LOCK) $(ARGS) pyproject.toml $(RUN_EXTRAS) --extra dev --group lock -c requirements.lock \
		-c requirements-build.lock \
		-o requirements-dev.lock >/dev/null
	@$(LOCK) $(ARGS) pyproject.toml $(RUN_EXTRAS) --extra docs -c requirements.lock \
		-c requirements-dev.lock -o requirements-docs.lock >/dev/null
	@$(LOCK) $(ARGS) pyproject.toml $(RUN_EXTRAS) --extra dbt -c requirements.lock \
		-o requirements-dbt.lock >/dev/null
	@git --no-pager diff --stat -- '*.lock' || true

# What is not the sample's stays: an own landing or warehouse may lie in data/ as well.
clean: ## remove the environment, the sample data, its tables and the Dagster instance
	@$(PYTHON) backfill_assets_guide/sample/clearing.py "$(CURDIR)"
	rm -rf $(VENV) build mutants site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
