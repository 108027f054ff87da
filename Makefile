# Few verbs. Everything runs in .venv, which `make install` builds from pinned and hashed requirements.
.PHONY: install demo up check test questions soak bench openapi migrate lock clean
SHELL := /bin/sh
BIN := .venv/bin

install: .venv/.installed

.venv/.installed: requirements/dev.txt pyproject.toml scripts/install
	@sh scripts/install
	@touch $@

demo: install
	@$(BIN)/rondo demo

up: install
	@$(BIN)/rondo up

# Each of the test processes has servers of its own; more than four would only wait for the disk.
test: install
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

# Odd questions to every operation of the OpenAPI document, others each time.
questions: install
	@QUESTIONS=$(or $(QUESTIONS),300) $(BIN)/python -m pytest tests/contract/test_odd_questions.py -n auto $(PYTEST_ARGS)

check: install
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest tests/test_shape.py tests/test_openapi.py -k "not OverHttp"

# A storm of kills and cuts over the whole service: make soak SECONDS=600 [SEED=7] [FAULTS=kill,cut]
SECONDS ?= 600
soak: install
	@$(BIN)/python -m tests.faults --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS))

bench: install
	@$(BIN)/python -m bench $(BENCH_ARGS)

openapi: install
	@$(BIN)/rondo openapi openapi/openapi.json

migrate: install
	@$(BIN)/rondo migrate

# Resolve the requirements anew; the only verb that changes what is installed.
lock:
	uv pip compile --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml --extra dev -o requirements/dev.txt
	uv pip compile --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml -c requirements/dev.txt -o requirements/base.txt
	uv pip compile --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml --extra otel -c requirements/dev.txt -o requirements/otel.txt
	uv pip compile --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml --extra ner -c requirements/dev.txt -o requirements/ner.txt

clean:
	rm -rf .venv .tools .rondo
