# Everything a newcomer runs. Each target makes .venv from requirements.lock when it is missing or
# out of date, says so, and is quiet otherwise.

SHELL := /bin/sh
CANDIDATES := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo unit test campaign check bench bench-kafka-jars golden lock clean

help:
	@echo "make demo      a fleet, recorded into tables by Spark while it drives, and asked about its past"
	@echo "make unit      the quick tests, without other processes: about a minute"
	@echo "make test      format, lint and type checks, and all tests but campaigns: a quarter of an hour"
	@echo "make campaign  what takes long: many kills, kernels checked two more ways, every malformed byte"
	@echo "make check     format, lint and type checks alone"
	@echo "make bench     the speed figures, one per line"
	@echo "make bench-kafka-jars  what the lake's figures are measured beside: Kafka, Spark, Delta; see docs/speed.md"
	@echo "make golden    record the golden vectors again from eclipse-zenoh"
	@echo "make lock      resolve requirements.lock again from pyproject.toml"
	@echo "make clean     remove .venv and every cache"

$(READY): requirements.lock pyproject.toml
	@python=; for p in $(CANDIDATES); do \
	  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11, 1))' 2>/dev/null; then python=$$p; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "zenlake needs Python 3.11.1 or newer, and none of these is: $(strip $(CANDIDATES))." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
	  exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$($$python --version) ..."; \
	"$$python" -m venv --clear $(VENV) && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . && \
	touch $(READY)

demo: $(READY)
	@$(BIN)/python -m demo $(DEMO)

# Each tier is several runs side by side; tests/tiers.py says what is in which.
unit test campaign: $(READY)
	@$(BIN)/python -m tests.tiers $@

check: $(READY)
	@$(BIN)/ruff format --quiet --check . || { echo "Run: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

bench: $(READY)
	@$(BIN)/python -m bench

# Everything goes below the folder: the jars, another Python environment, and what Maven keeps.
COPY_JARS = mvn --quiet --batch-mode -Dmaven.repo.local="$(ZENLAKE_KAFKA)/maven" \
  dependency:copy-dependencies -DincludeScope=runtime

bench-kafka-jars: $(READY)
	@case "$(ZENLAKE_KAFKA)" in /*) ;; *) \
	  echo "Name a folder by its full path: make bench-kafka-jars ZENLAKE_KAFKA=/some/folder" >&2; exit 1;; \
	esac
	@for part in broker spark; do \
	  rm -rf "$(ZENLAKE_KAFKA)/$$part" && \
	  $(COPY_JARS) -f bench/kafka/$$part.xml -DoutputDirectory="$(ZENLAKE_KAFKA)/$$part" || exit 1; \
	done
	@$(BIN)/python -m venv --clear "$(ZENLAKE_KAFKA)/venv"
	@"$(ZENLAKE_KAFKA)/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r bench/kafka/requirements.txt

golden: $(READY)
	@$(BIN)/python -m tests.golden.record

lock:
	@python3 -m venv .venv-lock && .venv-lock/bin/pip install --quiet --disable-pip-version-check uv
	@.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate --extra dev --extra lake --extra log --extra quic --extra serial --extra spark pyproject.toml -o requirements.lock
	@rm -rf .venv-lock

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
