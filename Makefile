# Everything a newcomer runs. Each target makes .venv from requirements.lock when it is missing or
# out of date, says so, and is quiet otherwise.

SHELL := /bin/sh
CANDIDATES := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test talking computing quietly check kernel bench golden lock clean

help:
	@echo "make demo    a fleet, recorded into tables by Spark while it drives, and asked about its past"
	@echo "make test    format, lint and type checks, then every test"
	@echo "make bench   the speed figures, one a line"
	@echo "make golden  record the golden vectors again from eclipse-zenoh"
	@echo "make lock    resolve requirements.lock again from pyproject.toml"
	@echo "make clean   remove .venv and every cache"

$(READY): requirements.lock pyproject.toml
	@python=; for p in $(CANDIDATES); do \
	  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$p; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "zenlake needs Python 3.11 or newer, and none of these is: $(strip $(CANDIDATES))." >&2; \
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

# Two runs side by side: what talks to other nodes waits most of the time, the rest computes. A third
# would make both wait for processors, and gain nothing.
TALKING := $(addprefix tests/,aio api cli demo examples interop link router runtime)

test: check
	@echo "two runs; what the second says comes at the end, and stands in $(VENV)/computing.log"
	@$(MAKE) --no-print-directory --jobs=2 talking quietly; done=$$?; \
	cat $(VENV)/computing.log; exit $$done

quietly: $(READY)
	@nice -n 10 $(MAKE) --no-print-directory computing > $(VENV)/computing.log 2>&1

talking: $(READY)
	@$(BIN)/pytest -q -o cache_dir=.pytest_cache/talking $(TALKING)
	@$(MAKE) --no-print-directory kernel

computing: $(READY)
	@$(BIN)/pytest -q $(addprefix --ignore=,$(TALKING))

check: $(READY)
	@$(BIN)/ruff format --quiet --check . || { echo "Run: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

# The kernels check every bound themselves. Once more with Numba's own check on, so that a check
# that is missing fails loudly, and once as plain Python, which must give the same answers.
kernel: $(READY)
	@echo "kernel tests with NUMBA_BOUNDSCHECK=1"
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/numba-boundscheck $(BIN)/pytest -q -o cache_dir=.pytest_cache/kernel -m kernel
	@echo "kernel tests with NUMBA_DISABLE_JIT=1"
	@NUMBA_DISABLE_JIT=1 $(BIN)/pytest -q -o cache_dir=.pytest_cache/kernel -m kernel

bench: $(READY)
	@$(BIN)/python -m bench

golden: $(READY)
	@$(BIN)/python tests/golden/record.py

lock:
	@python3 -m venv .venv-lock && .venv-lock/bin/pip install --quiet --disable-pip-version-check uv
	@.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate --extra dev --extra lake --extra log --extra spark pyproject.toml -o requirements.lock
	@rm -rf .venv-lock

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
