# Relay. Two commands matter: `make run` and `make test`. Each sets up what it needs.
.DEFAULT_GOAL := help
.PHONY: help run test check soak fuzz bench layers format docs lock clean

PYTHON ?= python3
RUNS ?= 1000000
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Behind a company's own certificate authority uv would otherwise not find it.
export UV_SYSTEM_CERTS ?= 1
export UV_PYTHON_DOWNLOADS ?= never

help:  ## show this help
	@echo "make run     set up and start the relay on http://127.0.0.1:8000"
	@echo "make test    set up, check and run every test"
	@echo "make check   format, lint, types, layers, generated docs in step"
	@echo "make soak    crash tests, 200 rounds instead of 10: about ten minutes"
	@echo "make fuzz    a million hostile inputs, guided by coverage: about five minutes (RUNS=…)"
	@echo "make bench   what an operation costs, beside other servers: half an hour (bench/README.md)"
	@echo "make layers  where the time of one prompt goes: ten seconds"
	@echo "make format  put the code into its form"
	@echo "make docs    write the generated pages of docs/ anew"
	@echo "make lock    resolve requirements/*.txt anew from pyproject.toml"
	@echo "make clean   remove the virtual environment and caches"

run: $(VENV)/.run
	@$(BIN)/relay serve

test: check
	$(BIN)/pytest --numprocesses 2 --dist loadfile

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

soak: $(VENV)/.dev
	RELAY_SOAK_ROUNDS=200 $(BIN)/pytest --numprocesses 2 --dist loadfile tests/faults

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m fuzz --runs $(RUNS)

bench: $(VENV)/.dev
	$(BIN)/python -m bench.run $(ARGS)

layers: $(VENV)/.dev
	$(BIN)/python -m bench.layers 2>/dev/null

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "Relay needs Python 3.10 or newer; '$(PYTHON)' is older or missing. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing. On Debian or Ubuntu: apt install python3-venv   (then run make again)" >&2; exit 1; }
	@echo "Setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# Hashes are checked, and nothing is built from unlocked parts: hatchling itself comes from the lock.
$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/bin/python
	@$(PIP) install --quiet --require-hashes --requirement requirements/run.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(VENV)/bin/python
	@$(PIP) install --quiet --require-hashes --requirement requirements/dev.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.run

# Built from source it would need a clang of its own: a wheel or nothing.
$(VENV)/.fuzz: requirements/fuzz.txt $(VENV)/.dev
	@$(PIP) install --quiet --only-binary atheris --require-hashes --requirement requirements/fuzz.txt || { \
	  echo "The fuzzer atheris has no wheel for this Python or platform. On Linux try: make clean && make fuzz PYTHON=python3.11" >&2; exit 1; }
	@touch $@

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
  --no-emit-index-url --no-header pyproject.toml --extra all --group install
lock: $(VENV)/.dev
	@$(PIP) install --quiet uv
	$(COMPILE) --output-file requirements/run.txt
	$(COMPILE) --group dev --constraint requirements/run.txt --output-file requirements/dev.txt
	$(COMPILE) --group fuzz --constraint requirements/run.txt --output-file requirements/fuzz.txt

clean:
	rm -rf $(VENV) bench/.build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .fuzz dist
