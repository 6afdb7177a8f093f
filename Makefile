# make env      the environment in .venv, from constraints.txt
# make writeup  the environment and then everything: measure this machine, write reports/writeup.md
# make test     the environment and then the tests, except the slow ones
# make test-slow   those
PYTHON ?= python3
VENV := .venv
TARGET := reports/writeup.md

.PHONY: env writeup test test-slow lint

env: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@# Python compiles by itself what is imported, a small part of all modules.
	$(VENV)/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

# Two jobs at a time: tables and sections, and cells that leave the host to others.
writeup: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" python -m snakemake --cores 2 $(TARGET)

test: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" pytest tests/

test-slow: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" pytest -m slow tests/

lint: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" ruff check . && PATH="$$PWD/$(VENV)/bin:$$PATH" ruff format --check .
	PATH="$$PWD/$(VENV)/bin:$$PATH" snakefmt --check workflow
	PATH="$$PWD/$(VENV)/bin:$$PATH" mypy
