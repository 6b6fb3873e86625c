# Everything a contributor or CI runs. `make help` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PROMETHEUS := $(VENV)/prometheus
POSTGRESQL := $(VENV)/postgresql
BROWSER := $(VENV)/chromium
MUTATION := $(VENV)/.mutation
AUDIT  := $(VENV)/.audit
# What is installed besides. The tests of PyTorch's export need `dev-torch`: as gigabytes come with it, CI alone has it.
EXTRAS ?= embedded,dev

.PHONY: help demo check test long fuzz prove proved claims lint audit format lock clean
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

# First what may run side by side: three at a time keep two processors busy, as many tests wait. Then what needs the
# machine to itself. Both parts run, whatever failed in the first. $(1) is which tests, $(2) how they are shared out.
define in_two_parts
	$(BIN)/pytest --durations=20 -m 'not alone and $(1)' --numprocesses 3 --dist $(2); \
	together=$$?; $(BIN)/pytest --durations=20 -m 'alone and $(1)' && exit $$together
endef

test: $(STAMP) | $(PROMETHEUS) $(POSTGRESQL) $(BROWSER)  ## run the tests (GPU tests are skipped where there is no GPU)
	$(call in_two_parts,not long,loadfile)

long: $(STAMP) | $(PROMETHEUS) $(POSTGRESQL)  ## run the tests that take longest, which CI runs after the others
	$(call in_two_parts,long,worksteal)

check: lint      ## what to run before every commit: lint, and the quick unit and property tests
	$(BIN)/pytest --durations=5 -m 'not alone and not long and not slow' --numprocesses 3 --dist loadfile tests/unit tests/property

$(MUTATION): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS),mutation]'
	@touch $@

prove: $(STAMP) $(MUTATION)  ## what takes too long for CI, by hand: a line for each unit in tests/prove, where it goes on
	$(BIN)/python tests/prove/prove.py

proved: $(STAMP) ## fail if what `make prove` writes is missing or belongs to other code
	$(BIN)/python tests/prove/prove.py --check

claims: $(STAMP) ## compute every figure of the README and the docs from raw results, write them there, and list the claims
	$(BIN)/python benchmarks/claims.py

FUZZ_S ?= 600
fuzz: $(STAMP)   ## fuzz the wire parsers and the readers of files: FUZZ_S seconds each (600), 15 in `make long`
	TRITUNE_FUZZ_S=$(FUZZ_S) $(BIN)/pytest --numprocesses 2 --dist load tests/fuzz

lint: $(STAMP)   ## ruff, mypy --strict, import contracts, and whether every figure of the docs follows from raw results
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
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[embedded,dev,dev-torch,audit,mutation]'
	$(BIN)/pip freeze --exclude-editable | sed -E 's/\+(cpu|cu[0-9]+)$$//' > constraints.txt

clean:           ## remove the environment and all caches, not the runs
	rm -rf $(VENV) .demo build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
