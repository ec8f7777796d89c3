# Every target does its own set-up: on a fresh machine with Java and Python, start with any of them.

# An interpreter to use instead of the first one that serves: make setup PYTHON=/path/to/python3
PYTHON =
# How long the demo runs.
SECONDS = 30
# Which benchmark runs.
NAME = pipeline

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Spark's Python workers must run this environment, and no other Spark or package path may leak in.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
unexport SPARK_HOME PYSPARK_DRIVER_PYTHON PYTHONPATH PYTHONHOME

.PHONY: help setup hooks demo test coverage test-faults test-s3 test-kafka test-cluster test-delta test-wheel peers test-all fuzz check audit bench wheel lock upgrade clean

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

demo: setup ## run the demo (SECONDS=30)
	$(BIN)/penstock demo --seconds $(SECONDS)

# Many tests mostly wait, for Spark or for what was killed: three groups of them run side by side.
SPARK_TESTS := tests/spark tests/bench/test_load.py tests/console/test_demo.py
CLUSTER_TESTS := tests/exactly_once tests/host tests/bench/workloads
group = COVERAGE_FILE=$(VENV)/coverage/data.$(1) $(BIN)/python -m pytest --durations=10 $(MEASURED)

test: setup ## run the tests, without the slow ones
	@$(call group,spark) $(SPARK_TESTS) > $(VENV)/spark-tests.log 2>&1 & spark=$$!; \
	$(call group,cluster) $(CLUSTER_TESTS) > $(VENV)/cluster-tests.log 2>&1 & cluster=$$!; \
	$(call group,rest) $(addprefix --ignore=,$(SPARK_TESTS) $(CLUSTER_TESTS)); failed=$$?; \
	wait $$cluster || failed=1; wait $$spark || failed=1; \
	cat $(VENV)/cluster-tests.log $(VENV)/spark-tests.log; exit $$failed

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

# What `penstock bench live` compares with. They want other versions of libraries: a folder of their own.
peers: setup ## install the peers that bench live compares with
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

# An environment with nothing in it but the wheel and what that asks for: several hundred MB.
test-wheel: wheel ## install the wheel in an empty environment and run the README's flow there
	$(BIN)/python scripts/try_wheel.py

check: setup ## lint, format, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: setup ## check requirements.lock against known vulnerabilities
	@$(BIN)/python scripts/audit.py

bench: setup ## run a benchmark (NAME=pipeline)
	$(BIN)/penstock bench $(NAME)

wheel: setup ## build the wheel, into dist/
	$(BIN)/python -m hatchling build --target wheel --directory dist

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
