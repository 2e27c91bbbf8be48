# `make demo` and `make test` need Python 3.11 or newer, git and make; everything else goes into .venv.
# uv is used when it is there.

ifndef PYTHON
PYTHON := $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
endif

BIN := .venv/bin
SQLALCHEMY_20 := .venv/sqlalchemy-2.0
SQLALCHEMY_20_PIN := sqlalchemy==2.0.58
PYTEST := $(BIN)/python -m pytest -n $(or $(WORKERS),4)
# What an application meets: no brokers.
APPLICATION_SIDE := tests/unit tests/integration tests/migration -m "not rabbitmq and not sqs and not slow"

.PHONY: demo test lint bench clean test-pythons
.PRECIOUS: .venv-%/.ready

demo: .venv/.ready
	$(BIN)/outbox-relay demo

# The largest part comes last, so that its summary is what stands at the end.
test: .venv/.ready $(SQLALCHEMY_20)/.ready
	@echo "== SQLAlchemy 2.0, the application's side"
	PYTHONPATH="$(CURDIR)/$(SQLALCHEMY_20)" $(PYTEST) $(APPLICATION_SIDE)
	@echo "== a second PostgreSQL version, the application's side"
	$(BIN)/python -m tests.support.second_postgres $(PYTEST) $(APPLICATION_SIDE)
	@echo "== benchmarks, one at a time: they compare rates"
	$(BIN)/python -m pytest tests/benchmarks
	@echo "== everything else"
	$(PYTEST) --ignore=tests/benchmarks

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.ready
	$(BIN)/outbox-relay bench

test-pythons: test-python-3.12 test-python-3.13

test-python-%: .venv-%/.ready
	.venv-$*/bin/python -m pytest -n $(or $(WORKERS),4) tests/unit tests/contract

clean:
	rm -rf .venv .venv-* build dist .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# $(call make_venv,DIRECTORY,PYTHON): the package in editable mode with everything optional, and the tools, at the
# versions that were tested. pip learned --group in 25.1.
define make_venv
	@echo "== making $(1): a minute, this once"
	@rm -rf $(1)
	@if command -v uv >/dev/null; then \
		uv venv --quiet --python "$(2)" $(1) && \
		uv pip install --quiet --python $(1)/bin/python --constraint constraints.txt --group dev --editable '.[all]'; \
	elif [ -z "$(2)" ]; then \
		echo "No Python found for $(1): .venv needs 3.11 or newer (make PYTHON=/path/to/python), or install uv." >&2; exit 1; \
	else \
		"$(2)" -m venv $(1) && \
		$(1)/bin/python -m pip install --quiet --upgrade 'pip>=25.1' && \
		$(1)/bin/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[all]'; \
	fi
	@touch $@
endef

.venv/.ready: pyproject.toml constraints.txt
	$(call make_venv,.venv,$(or $(PYTHON),$(shell command -v uv >/dev/null && echo '>=3.11')))

# Python 3.12 or 3.13 from PATH, else from pyenv (whose shims are in PATH also for versions that aren't active).
.venv-%/.ready: pyproject.toml constraints.txt
	$(call make_venv,.venv-$*,$(or $(shell for python in python$* "$$HOME"/.pyenv/versions/$*.*/bin/python; do \
		$$python -c '' 2>/dev/null && echo $$python && break; done),$(shell command -v uv >/dev/null && echo $*)))

# In a directory of its own that PYTHONPATH puts before the version in .venv.
$(SQLALCHEMY_20)/.ready: .venv/.ready
	@rm -rf $(SQLALCHEMY_20)
	@if command -v uv >/dev/null; then \
		uv pip install --quiet --python $(BIN)/python --no-deps --target $(SQLALCHEMY_20) '$(SQLALCHEMY_20_PIN)'; \
	else \
		$(BIN)/python -m pip install --quiet --no-deps --target $(SQLALCHEMY_20) '$(SQLALCHEMY_20_PIN)'; \
	fi
	@touch $@
