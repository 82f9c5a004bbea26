# Two commands do everything on a machine with Python >= 3.11 and make:
#   make quickstart   create the environment, install, run the first scenario
#   make test         create the environment, check format, lint, types, run all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: quickstart test check baseline bench fix clean

quickstart: $(INSTALLED)
	$(BIN)/moesim run scenarios/quickstart.yaml

test: check
	$(BIN)/python -m pytest -n auto --cov --cov-report=term

check: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

# Accept what the golden runs give now; review the change of tests/golden/baselines.
baseline: $(INSTALLED)
	$(BIN)/python -m pytest tests/golden --update-baseline

# What simulating costs; options in ARGS, as in make bench ARGS="--only engines --long".
bench: $(INSTALLED)
	$(BIN)/python tests/bench/suite.py $(ARGS)

fix: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@
