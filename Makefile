# Isotropy. `make learn` shows it at work, `make test` shows that it is right.
#
#   PYTHON=python3.12   make .venv with this Python (3.11 or newer; python3 unless said)
#   TORCH=cpu           where torch has to be installed: ask for the CPU build
#   ARGS="..."          more arguments for the command that the target runs

TORCH ?=
PYTHON ?=
ARGS ?=
JOBS ?= 2

SETUP := PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh scripts/setup_environment.sh
RUN := .venv/bin/python -m
# One thread per test process: two processes with two threads each starve one another.
PYTEST := OMP_NUM_THREADS=1 $(RUN) pytest -n $(JOBS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help learn test test-all kernels check fuzz soak bench docs dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@sed -n 's/^#   /  /p' Makefile

learn: ## learn the symmetry of the embedded rotated digits, and write a report
	@$(SETUP)
	@.venv/bin/isotropy learn --variant rotated $(ARGS)

test: ## the tests, without the slow ones
	@$(SETUP) test
	$(PYTEST) $(ARGS)

test-all: ## all tests
	@$(SETUP) test
	$(PYTEST) -m "" $(ARGS)

kernels: ## the GPU kernels, on a CPU in Triton's interpreter
	@$(SETUP) test kernels
	TRITON_INTERPRET=1 $(PYTEST) tests/symmetry/test_warp_triton.py $(ARGS)

check: ## ruff, mypy, and which room imports which
	@$(SETUP) test check
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) pytest -q tests/test_architecture.py

fuzz: ## malformed calls for a minute, or ARGS="--minutes 30 --seed 7"
	@$(SETUP) test
	OMP_NUM_THREADS=1 .venv/bin/python tests/trust/fuzz.py $(ARGS)

soak: ## commands killed 20 times at random moments, or ARGS="--kills 100"
	@$(SETUP) test
	OMP_NUM_THREADS=1 .venv/bin/python tests/trust/soak.py $(ARGS)

bench: ## the benchmarks, into results/bench and the tables of the docs
	@$(SETUP) bench
	$(RUN) benchmarks --out results/bench $(ARGS)
	.venv/bin/python scripts/results_table.py
	.venv/bin/python scripts/results_page.py
	.venv/bin/python scripts/speed_table.py
	.venv/bin/python scripts/scale_table.py

docs: ## the site, into build/site
	@$(SETUP) test docs
	.venv/bin/python docs/site/build.py $(ARGS)

dist: ## wheel and source archive, into dist, tried in a clean environment
	@$(SETUP) test
	rm -rf dist
	$(RUN) hatchling build -d dist
	.venv/bin/python scripts/check_dist.py dist $(ARGS)

clean: ## remove .venv, caches and builds; what you learned, in runs, stays
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
