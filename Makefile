# Everything a contributor or CI runs. `make help` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PROMETHEUS := $(VENV)/prometheus
POSTGRESQL := $(VENV)/postgresql
BROWSER := $(VENV)/chromium
AUDIT  := $(VENV)/.audit
# What is installed besides. The tests of PyTorch's export need `dev-torch`, which takes gigabytes: only CI has it.
EXTRAS ?= embedded,dev

.PHONY: help demo check test measure long fuzz claims lint audit format lock clean
help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 12); sys.exit(None if ok else "tritune needs Python 3.11 or 3.12, and $(PYTHON) is " + sys.version.split()[0] + ".\nRun: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)   ## install, write a ranking model, and find its cheapest configuration under p99 50 ms
	$(BIN)/python examples/ranking_mlp.py .demo/ranking_mlp.onnx
	$(BIN)/optimize --model .demo/ranking_mlp.onnx --p99 50ms --time-budget 2m

$(PROMETHEUS): $(STAMP)
	@mkdir -p $@
	@.ci/prometheus $@

$(POSTGRESQL): $(STAMP)
	@mkdir -p $@
	@.ci/postgresql $@

$(BROWSER): $(STAMP)
	@mkdir -p $@
	@.ci/chromium $@

TOGETHER := --numprocesses 4 --no-loadscope-reorder --dist
SERVICES := $(PROMETHEUS) $(POSTGRESQL) $(BROWSER)

# Four at a time keep two processors busy, as many tests wait; in order, so that the longest does not come last.
test: $(STAMP) | $(SERVICES)  ## run the tests; ends with how long they took and with what was skipped
	$(BIN)/pytest --durations=10 -m 'not measure and not long' $(TOGETHER) loadfile

check: lint      ## what to run before every commit: lint, and the quick unit and property tests
	$(BIN)/pytest --durations=5 -m 'not measure and not long and not slow' $(TOGETHER) loadfile tests/unit tests/property

measure: $(STAMP) | $(SERVICES)  ## run what measures, one test at a time: by hand and at night, on a quiet machine
	$(BIN)/pytest --verdicts -m measure

long: $(STAMP) | $(SERVICES)  ## run what takes long: grids, kills, exports and fuzzing
	@$(BIN)/pytest --verdicts -m long $(TOGETHER) worksteal; long=$$?; \
	$(BIN)/pytest --hypothesis-profile=drawn -m 'not measure and not long' $(TOGETHER) load tests/property; exit $$((long | $$?))

claims: $(STAMP) ## compute the figures of the README and the docs from raw results, and write them there
	$(BIN)/python benchmarks/claims.py

FUZZ_S ?= 600
fuzz: $(STAMP)   ## fuzz the wire parsers and the readers of files: FUZZ_S seconds each (600), 15 in `make long`
	TRITUNE_FUZZ_S=$(FUZZ_S) $(BIN)/pytest --numprocesses 2 --dist load tests/fuzz

lint: $(STAMP)   ## ruff, mypy --strict, import contracts, and whether the docs have the figures of new raw results
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/claims.py --check

$(AUDIT): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS),audit]'
	@touch $@

audit: $(AUDIT)  ## compare constraints.txt with known vulnerabilities; skipped if no database of them can be reached
	.ci/audit $(VENV)

format: $(STAMP) ## reformat and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:            ## refresh constraints.txt from the newest versions that pyproject.toml allows
	rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[embedded,dev,dev-torch,audit]'
	$(BIN)/pip freeze --exclude-editable | sed -E 's/\+(cpu|cu[0-9]+)$$//' > constraints.txt

clean:           ## remove the environment and all caches, not the runs
	rm -rf $(VENV) .demo build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
