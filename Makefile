# Each target sets up what it needs; `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1

.PHONY: setup demo test check bench docs format lock clean

setup: .setup-stamp

.setup-stamp: pyproject.toml requirements/base.lock scripts/setup
	PYTHON=$(PYTHON) scripts/setup
	touch $@

demo: setup  ## train a policy over a swarm of daemons on this machine (3 minutes)
	$(BIN)/aurora-host demo $(ARGS)

test: setup  ## everything a machine without a GPU can run
	$(BIN)/python -m pytest -q -n 2 -m "not slow" $(ARGS)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "slow and not alone" $(ARGS)
	$(BIN)/python -m pytest -q -m alone $(ARGS)

check: setup  ## the inner loop: format, lint, import rules, types, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest -q -n 2 -m "not slow" $(ARGS)

docs: setup  ## render from the code what the documents and the vectors quote of it
	$(BIN)/python -m tests.docs.wire_blocks
	$(BIN)/python -m tests.docs.reference
	$(BIN)/python -m tests.docs.benchmarks
	$(BIN)/python -m tests.vectors.generate

bench: setup  ## size, speed and exactness of the delta codec (ARGS=--quick: in a minute)
	$(BIN)/python -m benchmarks.codec $(ARGS)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup  ## resolve requirements/base.lock anew
	$(BIN)/uv pip compile pyproject.toml --group dev -c requirements/constraints.txt \
	  --override requirements/overrides.txt --no-emit-package torch --no-annotate --no-header \
	  --python $(BIN)/python | grep -v '^nvidia-[^m]\|^cuda-' > requirements/base.lock.new
	mv requirements/base.lock.new requirements/base.lock

clean:
	rm -rf .venv .setup-stamp .mypy_cache .ruff_cache .pytest_cache .hypothesis
