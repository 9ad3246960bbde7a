# make demo   set up, then train CartPole-v1 before your eyes
# make test   set up, then run the checks and the tests (what CI runs)

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test setup check format learn bench docs gallery clean

demo: setup
	$(BIN)/shoal train CartPole-v1 --seed 1

test: check
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal

setup: .venv/installed

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Shoal needs Python 3.11 or newer; try make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# tests compile in a hurry, which does not pay where they run for long
learn: setup
	XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=3" $(BIN)/pytest -m learn tests/learning

bench: setup
	$(BIN)/python bench/run.py

docs: setup
	$(BIN)/python docs/images/cartpole.py
	$(BIN)/python docs/images/federation.py
	$(BIN)/python docs/images/walker.py
	$(BIN)/python docs/images/pendulum.py

# from the runs of bench/results.py; make gallery RUNS=folder
RUNS ?= runs/results/ppo
gallery: setup
	$(BIN)/python bench/gallery.py --runs $(RUNS)

clean:
	rm -rf .venv .venv-peers
