# From a bare clone, with only Python (>= 3.11) and make: `make demo`, `make test`.
PYTHON ?= python3
BIN := .venv/bin
ENVIRONMENT := .venv/installed
TEST_ENVIRONMENT := .venv/installed-test

.PHONY: demo test test-torch test-distributed lint bench gallery clean

demo: $(ENVIRONMENT)
	@$(BIN)/python experiments/01_unequal_stages.py

test: lint
	$(BIN)/pytest -n auto

# What needs PyTorch, in an environment of its own: its schedules, op for op; real pipelines.
test-torch: .venv-torch/installed
	.venv-torch/bin/pytest tests/schedules/test_torch_schedules.py tests/runtime pipesim/runtime
	.venv-torch/bin/pytest tests/test_documents.py -k 05_from_pytorch

# The same sweep on local clusters of Dask and of Ray, in an environment of their own.
test-distributed: .venv-distributed/installed
	.venv-distributed/bin/python -m pytest -m distributed tests/studies/test_sweep_backends.py

lint: $(TEST_ENVIRONMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(TEST_ENVIRONMENT)
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/partition.py
	$(BIN)/python benchmarks/pages.py

# The figures of docs/gallery.md and of the README.
gallery: $(TEST_ENVIRONMENT)
	$(BIN)/python experiments/01_unequal_stages.py
	$(BIN)/python experiments/05_price_of_imbalance.py
	$(BIN)/python experiments/06_schedule_zoo.py
	$(BIN)/python experiments/09_imbalance_sweep.py
	$(BIN)/python experiments/11_equal_what.py
	$(BIN)/python experiments/12_recompute_trade.py
	$(BIN)/python experiments/13_pipeline_x_data_parallel.py
	$(BIN)/python experiments/17_a_page.py
	cp out/01_unequal_stages.png docs/straggler.png
	cp out/05_price_of_imbalance.png docs/price_of_imbalance.png
	cp out/06_schedule_zoo.png docs/schedule_zoo.png
	cp out/06_compared.png docs/schedules_compared.png
	cp out/09_imbalance_sweep.png docs/imbalance_sweep.png
	cp out/11_equal_what.png docs/equal_what.png
	cp out/12_recompute_trade.png docs/recompute.png
	cp out/13_replicas.png docs/replicas.png
	[ ! -f out/17_page.png ] || cp out/17_page.png docs/page.png  # without a browser it stays

clean:
	rm -rf .venv .venv-torch .venv-distributed out

# The marker files make both quick the second time.
$(ENVIRONMENT): pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'pipesim needs Python 3.11 or newer')"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(TEST_ENVIRONMENT): $(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --group test --group lint
	@touch $@

.venv-torch/installed: pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-torch/bin/python -m pip install --quiet torch==2.13.0
	.venv-torch/bin/python -m pip install --quiet --editable ".[torch]" --group test
	@touch $@

.venv-distributed/installed: pyproject.toml
	$(PYTHON) -m venv .venv-distributed
	.venv-distributed/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-distributed/bin/python -m pip install --quiet --editable ".[dask,ray]" --group test
	@touch $@
