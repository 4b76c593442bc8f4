# Everything starts from a bare machine with python3 and make: the targets make
# the virtual environment themselves and install the pinned versions.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TORCH_STAMP := $(VENV)/.torch-installed
# The pins are for one version of Python; with others, say CONSTRAINTS= for none.
CONSTRAINTS ?= -c constraints.txt

.PHONY: demo test test-torch fast lint types format docs docs-serve records results tutorials attack measure-scale release constraints clean

demo: $(STAMP)
	$(BIN)/onebasin demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The tests of PyTorch modules, which need PyTorch; make test runs without it.
test-torch: $(TORCH_STAMP)
	ONEBASIN_TEST_TORCH=1 $(BIN)/python -m pytest -n 2 tests/pytorch

fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m fast

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a broken link, or a documented parameter that does not exist, is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Workers, threads and 10,000 draws (16 GB in FOLDER), measured on a quiet machine: about two hours.
FOLDER ?= build/scale
measure-scale: $(STAMP)
	mkdir -p $(FOLDER)
	$(BIN)/python benchmarks/sweep_workers.py --folder $(FOLDER)/sweep
	$(BIN)/python benchmarks/threads.py
	$(BIN)/python benchmarks/threads.py --busy 2
	$(BIN)/python benchmarks/compact.py --folder $(FOLDER) --draws 1000
	$(BIN)/python benchmarks/compact.py --folder $(FOLDER) --draws 10000
	rm -f $(FOLDER)/draws*.safetensors

# Recompute the claims, tables and figures of committed records from their numbers, and the page.
records: $(STAMP)
	$(BIN)/python benchmarks/reconclude.py
	$(BIN)/onebasin report results/reproduction --out results/reproduction/report.html --overwrite

# Renew the tables of results in README.md and docs/ from the records.
results: $(STAMP)
	$(BIN)/python benchmarks/results_tables.py

# Run the tutorials; renew the outputs and the figures that they show.
tutorials: $(TORCH_STAMP)
	cd docs/tutorials/figures && for page in ../*.md; do \
	  ../../../$(BIN)/python -W error ../../../tests/tutorials.py $$page --write > /dev/null || exit 1; \
	done; rm -f *.safetensors

# The long attack on files, fits, networks and command lines: results/robustness.json.
attack: $(STAMP)
	$(BIN)/python tests/robustness/attack.py

# Wheel and sdist in dist/, checked; the wheel runs the demo in an empty environment.
TRIAL := build/trial
release: $(STAMP)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[release]"
	rm -rf dist $(TRIAL)
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(TRIAL)
	$(TRIAL)/bin/python -m pip install --quiet $(CONSTRAINTS) dist/*.whl
	cd $(TRIAL) && bin/onebasin demo --out demo
	@ls -l dist

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[test,lint,docs]"
	touch $(STAMP)

$(TORCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[test-torch]"
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --no-deps laplace-torch asdfghjkl \
	  backpack-for-pytorch curvlinops-for-pytorch einconv linear_operator unfoldNd
	touch $(TORCH_STAMP)

# The pins of constraints.txt, from what is installed here now; without the labels of local builds
# (torch==2.13.0+cpu), which no index has.
constraints: $(STAMP)
	( head -1 constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//' ) \
	  > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build dist site
