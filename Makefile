# make env      the environment in .venv, from constraints.txt, with what tests and checks need
# make writeup  an environment without those and then everything: measure this machine, write reports/writeup.md
# make quick    the same in six minutes: the first screen's figures
# make test     the environment and then the tests, except the slow ones
# make test-slow   those
PYTHON ?= python3
VENV := .venv
TARGET := reports/writeup.md

# Where it is set every process of the many would compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env writeup quick test test-slow lint

env: $(VENV)/with-tests

# Of all modules few are ever imported: what commands import is compiled here, the rest where it is.
INSTALL = $(VENV)/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
COMPILE = $(VENV)/bin/python -c "import pandas, snakemake.cli, torch._inductor.compile_fx, triton"

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	$(COMPILE)
	touch $@

$(VENV)/with-tests: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[test]'
	$(COMPILE)
	touch $(VENV)/installed $@

# Two jobs at a time: tables and sections, and cells that leave the host to others.
writeup: $(VENV)/installed
	PATH="$$PWD/$(VENV)/bin:$$PATH" python -m snakemake --cores 2 $(TARGET)

quick: $(VENV)/installed
	PATH="$$PWD/$(VENV)/bin:$$PATH" python -m snakemake --cores 2 --config scale=quick -- $(TARGET)

test: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" pytest tests/

test-slow: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" pytest -m slow tests/

lint: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" ruff check . && PATH="$$PWD/$(VENV)/bin:$$PATH" ruff format --check .
	# Text files are read and written in a named encoding.
	PATH="$$PWD/$(VENV)/bin:$$PATH" ruff check --preview --select PLW1514 src tools
	PATH="$$PWD/$(VENV)/bin:$$PATH" snakefmt --check workflow
	PATH="$$PWD/$(VENV)/bin:$$PATH" mypy
