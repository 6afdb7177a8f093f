# make env      the environment in .venv, from constraints.txt
# make writeup  the environment and then everything: measure this machine, write reports/writeup.md
# make test     the environment and then the tests
PYTHON ?= python3
VENV := .venv
TARGET := reports/writeup.md

.PHONY: env writeup test lint

env: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

writeup: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" python -m snakemake $(TARGET)

test: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" pytest tests/

lint: env
	PATH="$$PWD/$(VENV)/bin:$$PATH" ruff check . && PATH="$$PWD/$(VENV)/bin:$$PATH" ruff format --check .
	PATH="$$PWD/$(VENV)/bin:$$PATH" snakefmt --check workflow
	PATH="$$PWD/$(VENV)/bin:$$PATH" mypy
