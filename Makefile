# make env        install into .venv, from constraints.txt, with what tests and checks need
# make writeup    install without those, measure this machine and write reports/writeup.md
# make quick      the same in six minutes, with the figures of the report's first screen
# make test       install and run the tests, except the slow ones
# make test-slow  install and run the slow tests
PYTHON ?= python3
VENV := .venv
TARGET := reports/writeup.md

# If it were set, each of the many processes would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env writeup quick test test-slow lint

env: $(VENV)/with-tests

# Few modules are ever imported: those that commands import are compiled here, others when first imported.
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

# Two jobs at a time: tables and sections, and cells that can run side by side.
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
	# Text files must be opened with an explicit encoding.
	PATH="$$PWD/$(VENV)/bin:$$PATH" ruff check --preview --select PLW1514 src tools
	PATH="$$PWD/$(VENV)/bin:$$PATH" snakefmt --check workflow
	PATH="$$PWD/$(VENV)/bin:$$PATH" mypy
