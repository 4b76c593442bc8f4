# Everything starts from a bare machine with python3 and make: the targets make
# the virtual environment themselves and install the pinned versions.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test fast lint types format constraints clean

demo: $(STAMP)
	$(BIN)/onebasin demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m fast

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test,lint]"
	touch $(STAMP)

# The pins of constraints.txt, from what is installed here now.
constraints: $(STAMP)
	( head -1 constraints.txt; $(BIN)/python -m pip freeze --exclude-editable ) > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
