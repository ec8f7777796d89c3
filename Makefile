# Every target does its own set-up: on a fresh machine with Java and Python, start with any of them.

# An interpreter to use instead of the first one that serves: make setup PYTHON=/path/to/python3
PYTHON =
# How long the demo runs.
SECONDS = 90
# Which benchmark runs.
NAME = pipeline

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Spark's Python workers must run this environment, and no other Spark or package path may leak in.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
unexport SPARK_HOME PYSPARK_DRIVER_PYTHON PYTHONPATH PYTHONHOME

.PHONY: help setup hooks demo test coverage test-faults test-s3 test-kafka test-cluster test-browser test-metrics test-delta test-wheel peers test-all fuzz check docs docs-serve audit bench wheel lock upgrade clean

help: ## show this list
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(READY) ## make .venv with everything that requirements.lock names

$(READY): requirements.lock pyproject.toml bench/pyproject.toml
	@python="$$(PYTHON='$(PYTHON)' scripts/preflight)" || exit 1; \
	if $(BIN)/python -c 'import pip' 2>/dev/null; then exit 0; fi; \
	echo "Making $(VENV) with $$python"; \
	"$$python" -m venv --clear $(VENV)
	@echo "Installing; PySpark alone is a download of several hundred MB"
	$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable . --editable bench
	@touch $@

hooks: setup ## run the checks before each commit (pre-commit)
	$(BIN)/pre-commit install

demo: setup ## run the demo (SECONDS=90)
	$(BIN)/penstock demo --seconds $(SECONDS)

# Many tests mostly wait, for Spark or for what was killed: four groups of them run side by side.
SEEN_TESTS := tests/bench/test_demo.py tests/bench/workloads tests/browser $(addprefix tests/spark/,test_pages.py test_porting.py \
	test_report.py test_seen_in_spark.py test_own_functions.py test_plain.py) $(wildcard tests/exactly_once/test_live*.py)
SPARK_TESTS := tests/spark tests/bench/test_load.py
CLUSTER_TESTS := tests/exactly_once tests/host
GROUPS := spark seen cluster rest
group = COVERAGE_FILE=$(VENV)/coverage/data.$(1) $(BIN)/python -m pytest --durations=10 -o cache_dir=$(VENV)/tried/$(1) $(MEASURED)
without = $(addprefix --ignore=,$(1))
# What fails there is run again alone: a crowded machine is no failure. A wrong result is one, whenever it
# happens (tests/conftest.py). Exit code 5: this group has nothing to run again.
again = echo "Run again alone: what failed in the group $(1)"; \
	$(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none -o cache_dir=$(VENV)/tried/$(1); \
	code=$$?; test $$code = 0 -o $$code = 5 || failed=1;

test: setup ## run the tests, without the slow ones
	@rm -rf $(VENV)/tried $(VENV)/wrong-results
	@$(call group,spark) $(SPARK_TESTS) $(call without,$(SEEN_TESTS)) > $(VENV)/spark-tests.log 2>&1 & spark=$$!; \
	$(call group,seen) $(SEEN_TESTS) > $(VENV)/seen-tests.log 2>&1 & seen=$$!; \
	$(call group,cluster) $(CLUSTER_TESTS) $(call without,$(SEEN_TESTS)) > $(VENV)/cluster-tests.log 2>&1 & cluster=$$!; \
	$(call group,rest) $(call without,$(SPARK_TESTS) $(SEEN_TESTS) $(CLUSTER_TESTS)); failed=$$?; \
	wait $$cluster || failed=1; wait $$seen || failed=1; wait $$spark || failed=1; \
	cat $(VENV)/cluster-tests.log $(VENV)/seen-tests.log $(VENV)/spark-tests.log; \
	if test $$failed != 0 -a ! -e $(VENV)/wrong-results; then failed=0; $(foreach one,$(GROUPS),$(call again,$(one))) fi; \
	exit $$failed

# A tracer doubles the time of Python code and sees no Spark worker: a target of its own.
coverage: MEASURED := --cov --cov-report=
coverage: test ## run the tests and tell which share of the code they run
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage report --skip-covered --sort=miss

test-faults: setup ## run all proofs of exactly once, of which make test runs about half
	$(BIN)/python -m pytest -m "not kafka and not cluster and not s3" --durations=10 tests/exactly_once

# The server is built with Go once, into ~/.cache/penstock; Hadoop's s3a comes from Maven Central.
test-s3: setup ## run the tests with a real S3 server
	$(BIN)/python -m pytest -m s3 --durations=10 tests

# A broker, and Spark's connector, come from Maven Central once, into ~/.cache/penstock.
test-kafka: setup ## run the tests with a real Kafka broker
	$(BIN)/python -m pytest -m kafka --durations=10 tests

test-cluster: setup ## run the tests on a standalone Spark cluster
	$(BIN)/python -m pytest -m cluster --timeout 900 --durations=10 tests

# Debian's Chromium is installed if it is missing and this is root. PENSTOCK_PICTURES=DIR keeps the pictures.
test-browser: setup ## run the tests of the dashboard in a real browser
	$(BIN)/python -m pytest -m "browser or not browser" --durations=10 tests/browser

# promtool comes with Debian's package `prometheus`, which is installed if it is missing and this is root.
test-metrics: setup ## check metrics and alert rules with promtool
	@command -v promtool >/dev/null || { apt-get update -qq && apt-get install -qq --no-install-recommends prometheus; }
	$(BIN)/python -m pytest tests/observe/metrics

# What `penstock bench live` and `peers` compare with. They want other versions of libraries: Bytewax and
# Pathway have a folder of their own, Flink an environment.
peers: setup ## install the peers that bench live and bench peers compare with
	@test -d $(VENV)/peers-flink/bin || $(BIN)/python -m venv $(VENV)/peers-flink
	@ls -d $(VENV)/peers-flink/lib/python*/site-packages/pyflink >/dev/null 2>&1 || \
		$(VENV)/peers-flink/bin/python -m pip install --disable-pip-version-check --quiet apache-flink==2.3.0
	@test -d $(VENV)/peers/pathway || $(BIN)/python -m pip install --disable-pip-version-check --quiet --target $(VENV)/peers bytewax pathway

test-all: setup ## run all tests
	$(BIN)/python -m pytest --durations=20 -m ""

# Some minutes, with other examples each time.
fuzz: setup ## try much more bad input than the tests do
	PENSTOCK_FUZZ=40 $(BIN)/python -m pytest --timeout 1800 tests/fuzz

# No release of Delta runs on Spark 4.3 yet, so it comes with the Spark that it was made for, in a folder
# of its own; its jars come from Maven Central when the session starts.
DELTA := $(VENV)/delta
$(DELTA)/.ready: $(READY)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade --no-deps --target $(DELTA) \
		delta-spark==4.4.0 pyspark==4.2.0
	@touch $@

test-delta: $(DELTA)/.ready ## run the test with the real Delta
	PYTHONPATH=$(CURDIR)/$(DELTA) $(BIN)/python -m pytest tests/spark/test_delta.py

# An environment with nothing in it but the wheels and what they ask for: several hundred MB.
test-wheel: wheel ## install the wheels in an empty environment, and run the README's flow and the demo there
	$(BIN)/python scripts/try_wheel.py

check: setup docs ## lint, format, types, the direction of imports and the docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Material for MkDocs announces its successor at each build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs: setup ## build the site of the docs, into build/site; a dead link fails it
	$(MKDOCS) build --strict

docs-serve: setup ## show the site of the docs while you write, on port 8000
	$(MKDOCS) serve

audit: setup ## check requirements.lock against known vulnerabilities
	@$(BIN)/python scripts/audit.py

bench: setup ## run a benchmark (NAME=pipeline)
	$(BIN)/penstock bench $(NAME)

# Benchmarks and the demo are a package of their own, which needs more than the product does.
wheel: setup ## build the wheels of Penstock and of its benchmarks and demo, into dist/
	$(BIN)/python -m hatchling build --target wheel --directory dist
	cd bench && ../$(BIN)/python -m hatchling build --target wheel --directory ../dist

COMPILE = $(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	--generate-hashes --no-strip-extras --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --quiet --output-file requirements.lock

lock: setup ## bring requirements.lock in line with pyproject.toml
	$(COMPILE)

upgrade: setup ## the same, with the newest versions that fit
	$(COMPILE) --upgrade

clean: ## remove everything that make has made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
