# make demo       set up, then train CartPole-v1 before your eyes
# make test       set up, then run the checks and the quick tests
# make test-all   the slow tests as well: learning, several processes, four devices, kills (what CI runs)

PYTHON ?= python3
# scripts in .venv/bin do not start where the path has a space in it: python -m does
RUN := .venv/bin/python -m
PYTEST := $(RUN) pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: demo test test-slow test-all fuzz setup check format bench wheel docs docs-images gallery results results-check clean

demo: setup
	$(RUN) shoal.cli train CartPole-v1 --seed 1

test: check
	$(PYTEST) -m 'not slow'

test-slow: setup
	$(PYTEST) -m slow

test-all: test test-slow

# settings, matrices, worlds, plans, command lines, wrong in all ways; what breaks goes into the corpus of the tests
MINUTES ?= 10
fuzz: setup
	$(RUN) tests.fuzz --minutes $(MINUTES)

setup: .venv/installed

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Shoal needs Python 3.11 or newer; try make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(RUN) pip install --quiet --upgrade pip
	$(RUN) pip install --quiet --editable '.[dev]'
	@touch $@

check: setup
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) pyright
	.venv/bin/python -c 'from importlinter.cli import lint_imports_command as check; check()'

format: setup
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: setup
	.venv/bin/python bench/run.py

# into dist/; then installs it into an empty environment and trains there (-I: with that one, not with this folder)
WHEEL := $(CURDIR)/.venv-wheel/bin/python
wheel:
	rm -rf dist .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	"$(WHEEL)" -m pip wheel --quiet --no-deps --wheel-dir dist .
	"$(WHEEL)" -m pip install --quiet --no-compile dist/shoal-*.whl
	cd dist && "$(WHEEL)" -I -m shoal.cli train CartPole-v1 --steps 20000 --out run
	cd dist && "$(WHEEL)" -I -m shoal.cli eval run --episodes 10 --checkpoint best
	rm -rf dist/run .venv-wheel

# into site/; try it with python -m http.server --directory site
docs: .venv/docs
	.venv/bin/python docs/reference/settings.py
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

.venv/docs: .venv/installed
	$(RUN) pip install --quiet --editable '.[docs]'
	@touch $@

docs-images: setup
	.venv/bin/python docs/images/group.py
	.venv/bin/python docs/images/cartpole.py
	.venv/bin/python docs/images/federation.py
	.venv/bin/python docs/images/walker.py
	.venv/bin/python docs/images/pendulum.py

# does rows of docs/results/index.md: make results ENV=CartPole-v1 FLAGS="--algo td3"
results: setup
	.venv/bin/python bench/results.py $(ENV) $(FLAGS)

results-check: setup
	.venv/bin/python bench/stale.py --write

# from the runs of bench/results.py; make gallery RUNS=folder
RUNS ?= runs/results/ppo
gallery: setup
	.venv/bin/python bench/gallery.py --runs $(RUNS)

clean:
	rm -rf .venv .venv-peers
