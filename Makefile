# Every target sets up .venv first; the next time it is reused.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# The tested versions. `make test CONSTRAINTS=` takes the newest ones that are allowed.
CONSTRAINTS ?= -c constraints.txt
PIP := $(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS)
MINIMUM := .venv-minimum
MINIMUM_TORCH ?= 2.6.0
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal
# The tests that create their inputs on the device that is tested.
DEVICE_TESTS := tests/models tests/acquisition tests/optimizers tests/privacy/mechanisms \
	$(patsubst %,tests/privacy/test_%.py,account audit budget certificate clipping count \
	ledger_book ledger_summary noise)

.DEFAULT_GOAL := help
.PHONY: help demo report test quick test-sim test-cuda test-minimum mutants tutorials docs lint sbom benchmarks federated format clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.demo: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the library into $(VENV) (a minute or two, once)"
	@$(PIP) torch
	@$(PIP) -e '.[plots,sklearn]'
	@touch $@

$(VENV)/.all: $(VENV)/.demo
	@echo "installing every extra into $(VENV) (a minute or two, once)"
	@$(PIP) -e '.[plots,sklearn,secure,optuna,ax,signatures,postgres,federated,tutorials,docs,dev]'
	@$(BIN)/pip check
	@touch $@

demo: $(VENV)/.demo  ## run an example: a private result, its certificate, a plot and a report
	@$(BIN)/python tutorials/demo.py

report: $(VENV)/.demo  ## open the report of the example in the browser
	@test -f build/certificate.json || $(MAKE) --no-print-directory demo
	@$(BIN)/botorch-dp certificate html build/certificate.json --ledger build/ledger.sqlite \
		--output build/report.html --open

# Coverage and the meta device each make tests about 40 % slower, so every test runs once,
# and coverage is measured where it is required: for the privacy core, by its own tests.
# Then come the tests with inputs on each accelerator that this machine has or simulates.
test: $(VENV)/.all  ## run every test once, and check the coverage of the privacy core
	$(PYTEST) --meta-device --cov --cov-report= tests/privacy
	$(BIN)/coverage report --include='botorch_dp/privacy/*' --fail-under=95
	$(PYTEST) --meta-device --doctest-modules botorch_dp tests --ignore=tests/privacy
	@for device in $$($(BIN)/python -m tests.devices); do \
		$(MAKE) test-$$device || exit 1; \
	done

test-sim: $(VENV)/.all  ## run fast tests on a simulated accelerator, which finds what would fail on a GPU
	$(PYTEST) --meta-device --device sim tests/test_device.py \
		tests/test_simulated_accelerator.py tests/benchmarks/test_device.py
	$(PYTEST) --quick --meta-device --device sim $(DEVICE_TESTS)

test-cuda: $(VENV)/.all  ## run the tests that use a device on a GPU
	$(PYTEST) --device cuda tests/test_device.py $(DEVICE_TESTS)

quick: $(VENV)/.all  ## run each fast test with one set of parameters, in under a minute
	$(PYTEST) --quick tests

$(MINIMUM)/.all: pyproject.toml constraints-minimum.txt
	@test -x $(MINIMUM)/bin/python || $(PYTHON) -m venv $(MINIMUM)
	@echo "installing the oldest dependencies into $(MINIMUM) (a few minutes, once)"
	@$(MINIMUM)/bin/pip install --quiet --disable-pip-version-check \
		-c constraints-minimum.txt torch==$(MINIMUM_TORCH) \
		-e '.[plots,sklearn,secure,signatures,postgres,federated,test]'
	@touch $@

test-minimum: $(MINIMUM)/.all  ## run the suite with the oldest dependencies that are allowed
	$(MINIMUM)/bin/python -m pytest -q -n 2 --dist worksteal tests

mutants: $(VENV)/.all  ## break the library on purpose, line by line, and check that a test notices
	$(BIN)/python tests/mutants/run.py

tutorials: $(VENV)/.all  ## run a small version of every notebook
	SMOKE_TEST=1 $(BIN)/python -m pytest --nbmake -n 2 tutorials

docs: $(VENV)/.all  ## build the documentation into build/docs; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q docs build/docs

lint: $(VENV)/.all  ## check style and format (ruff), import contracts and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

sbom: $(VENV)/.all  ## list all components, versions and licences in build/sbom.json (CycloneDX)
	@mkdir -p build
	$(BIN)/python .ci/sbom.py > build/sbom.json

format: $(VENV)/.all  ## repair style and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmarks: $(VENV)/.all  ## run the benchmarks, and rewrite the tables in benchmarks/results
	$(BIN)/python -m benchmarks.privacy_core
	$(BIN)/python -m benchmarks.gradient_information
	$(BIN)/python -m benchmarks.design_history
	$(BIN)/python -m benchmarks.dp_gibo
	$(BIN)/python -m benchmarks.dp_gibo_figures
	$(BIN)/python -m benchmarks.private_release
	$(BIN)/python -m benchmarks.release_searches
	$(BIN)/python -m benchmarks.ldp_bo
	$(BIN)/python -m benchmarks.ldp_bo_tables
	$(BIN)/python -m benchmarks.dp_fts
	$(BIN)/python -m benchmarks.dp_fts_figures
	$(BIN)/python -m benchmarks.private_vote
	$(BIN)/python -m benchmarks.sklearn_search
	$(BIN)/python -m benchmarks.search_metrics
	$(BIN)/python -m benchmarks.private_training
	$(BIN)/python -m benchmarks.selection
	$(BIN)/python -m benchmarks.imports
	$(BIN)/python -m benchmarks.device
	$(BIN)/python -m benchmarks.local_bo
	$(BIN)/python -m benchmarks.arena
	$(BIN)/python -m benchmarks.arena --real

federated: $(VENV)/.all  ## run a federation on this machine: a Flower server, four agents, ten rounds
	@$(BIN)/python -m examples.flower_on_one_machine.loopback

clean:  ## remove the virtual environments and all build output
	rm -rf $(VENV) $(MINIMUM) build dist .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
