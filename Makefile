# Verbs for people. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do $$p -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null && { echo $$p; break; }; done)
# Renders the chart of deploy/helm.
HELM := helm.sh/helm/v3/cmd/helm@v3.19.0
# It has the schemas of Kubernetes' objects: 17,000 files, so it is not among the packages of .venv.
VALIDATE := kubernetes-validate==1.37.0
# Where one server will do: 3 puts a ZooKeeper and three brokers in its place.
BROKERS ?= $(or $(HEADRACE_BROKERS),1)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The style of pages. 3.21.0 is the newest release whose modules the Go proxy has in full.
VALE := github.com/vale-cli/vale/v3/cmd/vale@v3.21.0
# Every page and README follows the style in `styles/`.
VALE_PAGES = $(shell git ls-files '*.md')
# The demo and the tests start many short processes: let Python keep their bytecode.
unexport PYTHONDONTWRITEBYTECODE

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## a .venv with everything in it, the `headrace` command included

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Headrace needs Python 3.11 or newer; none was found on the PATH. Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked packages into $(VENV) ..."
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@echo "compiling the kernels once ..."
	@$(BIN)/headrace warm-up
	@touch $@

demo: setup  ## the whole idea on real data: tables, Kafka clients, Spark, the lake (about 3 minutes; SECURE=1, BROKERS=3, LAKE=paimon, LAKE_ON=s3)
	@HEADRACE_BROKERS=$(BROKERS) $(BIN)/python -m examples.demo

demo-wide: setup  ## partial updates: three sources, one wide table (BROKERS=3 too; BY=spark: by Spark SQL)
	@HEADRACE_BROKERS=$(BROKERS) HEADRACE_WIDE_BY=$(BY) $(BIN)/python -m examples.demo_wide

demo-cdc: setup  ## PostgreSQL's changes in tables, through Debezium; the broker is killed meanwhile (about 3 minutes; BROKERS=3 too)
	@HEADRACE_BROKERS=$(BROKERS) $(BIN)/python -m examples.cdc

demo-cluster: setup  ## three brokers and ZooKeeper; brokers are killed, restarted, drained and added meanwhile (about 4 minutes)
	@$(BIN)/python -m examples.demo_cluster

# Kafka's own tools are fetched while the first tests run.
test: setup  ## all tests that take minutes, not hours
	@$(BIN)/python -m bench.kafka_peer > /dev/null 2>&1 & $(BIN)/python -m pytest -n 3 --dist loadgroup

quick: setup  ## the tests that take seconds
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not spark and not soak" headrace simulator mutants docsite prose

soak: setup  ## the long tests, alone: kills, faults, attacks, random schedules, foreign clients, the mutants (hours)
	@HEADRACE_NO_FORKS=1 $(BIN)/python -m pytest -m soak --timeout 0
	@$(BIN)/python -m mutants

mutants: setup  ## break each promise in a copy of the source: its tests must fail (ARGS="--since main", "--only groups")
	@$(BIN)/python -m mutants $(ARGS)

compat: setup  ## clients of other languages, applications, Spark's Kafka options; writes compat-tests/COMPATIBILITY.md (BROKERS=3: against a cluster)
	@HEADRACE_BROKERS=$(BROKERS) HEADRACE_WRITE_COMPATIBILITY=1 $(BIN)/python -m pytest -p no:randomly -m soak compat-tests/foreign compat-tests/spark/test_kafka_options.py compat-tests/apps

docs: setup  ## the documentation as a site, into build/site
	@$(BIN)/python -m docsite

wheel: setup  ## headrace and headrace-client as wheels, into dist
	@$(BIN)/python -m wheels

$(BIN)/vale:
	@echo "compiling vale once, which takes some minutes ..."
	@GOBIN=$(CURDIR)/$(BIN) GOFLAGS= go install -ldflags="-s -w" $(VALE)

$(BIN)/helm:
	@echo "compiling helm once, which takes some minutes ..."
	@GOBIN=$(CURDIR)/$(BIN) GOFLAGS= go install -ldflags="-s -w" $(HELM)

check: setup  ## format, lint, types, layers, spelling, links and pages of the documentation, container files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@if command -v go > /dev/null; then $(MAKE) --no-print-directory $(BIN)/vale && $(BIN)/vale $(VALE_PAGES); \
	else echo "vale does not check the documentation's style here: it is compiled by Go, which is not on the PATH"; fi
	@$(BIN)/python -m docsite > /dev/null
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/yamllint -s docker/compose.yaml
	@if command -v promtool > /dev/null; then promtool check rules deploy/prometheus/headrace.rules.yml > /dev/null && \
	promtool test rules deploy/prometheus/headrace.rules.test.yml > /dev/null; else \
	echo "the alerts are not checked here: promtool is not on the PATH (Debian: the package prometheus)"; fi
	@$(BIN)/yamllint -s -d '{extends: default, ignore: ["deploy/helm/*/templates/"], rules: {line-length: {max: 120}}}' deploy
	@$(BIN)/uv tool run --quiet --from $(VALIDATE) kubernetes-validate --quiet --strict -k 1.33 deploy/kubernetes/*.yaml
	@if command -v go > /dev/null; then $(MAKE) --no-print-directory $(BIN)/helm && \
	$(BIN)/helm lint --strict --quiet --kube-version 1.33.0 --set tierer.enabled=true --set console.enabled=true deploy/helm/headrace && \
	$(BIN)/python deploy/render.py; \
	else echo "the Helm chart is not rendered here: helm is compiled by Go, which is not on the PATH"; fi

bench: setup  ## figures beside Apache Kafka and Apache Fluss from their published jars, one run
	@$(BIN)/python -m bench

format: setup  ## write the format that `make check` asks for, and the reference pages
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/python -m docsite references

clean:  ## remove what the demo, the tests and the benchmarks left behind
	@rm -rf .demo .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.PHONY: help setup demo demo-wide demo-cdc demo-cluster test quick soak mutants compat docs wheel check bench format clean
