# make demo: install, fetch the real model, train Agon, print what it learned.   make test: everything that is checked.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GAME ?= agon
SEED ?= 0
MINUTES ?= 12
RUN ?= runs/demo-$(GAME)-$(SEED)-$(shell date +%Y%m%d-%H%M%S)

FAULTS ?= 200
FUZZ ?= 100000
KILLS ?= 100
WHEELS ?= .wheels

# Tests start many processes. Where an environment forbids Python to keep compiled modules, each would compile them all.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs dist page test check test-fast test-faults test-ranks test-hostile format lock clean test-long test-gpu gpu-wheels gpu-draw test-unsloth test-versions weight

$(STAMP): pyproject.toml requirements-cpu.lock
	@echo "setting up $(VENV) from requirements-cpu.lock (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-cpu.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@$(BIN)/lite-selfplay train $(GAME) --preset demo --seed $(SEED) --minutes $(MINUTES) --run-dir $(RUN)
	@$(BIN)/lite-selfplay report $(RUN)

# A run as one file, docs/run.html, which the site shows: of RUN=..., else of two minutes of training. RUN=docs/run.html
# puts the page as it is today around the same run.
# It has the curves of all steps, and the episodes of as many of them as 200,000 characters hold.
page: MINUTES = 2
page: $(STAMP)
	@run="$(RUN)"; test -e "$$run" || \
	  $(BIN)/lite-selfplay train $(GAME) --preset demo --seed $(SEED) --minutes $(MINUTES) --run-dir "$$run"; \
	  $(BIN)/python docs/page.py "$$run" docs/run.html

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations=10 -m "not long"

# The slow rest: more games, precisions and signals, notebooks, a run taken away, benchmarks of the smallest size.
test-long: $(STAMP)
	$(BIN)/python -m pytest -q -m long --timeout 0 --ignore tests/hostile

test-fast: $(STAMP)
	$(BIN)/python -m pytest -q -m "not slow and not data"

# Runs that are killed FAULTS times, stopped by signals, moved, damaged, and run on a full disk: about an hour on one core.
test-faults: $(STAMP)
	OMP_NUM_THREADS=1 LITE_SELFPLAY_FAULTS=$(FAULTS) $(BIN)/python -m pytest -q --timeout 0 tests/faults

# Runs of several processes: each game for 20 steps against one process, and processes killed KILLS times.
test-ranks: $(STAMP)
	OMP_NUM_THREADS=1 LITE_SELFPLAY_RANKS_STEPS=20 LITE_SELFPLAY_RANKS_KILLS=$(KILLS) \
	  $(BIN)/python -m pytest -q -s --timeout 0 tests/ranks

# Hundreds of wrong requests, and FUZZ hostile inputs for every parser: most of two hours on one core.
test-hostile: $(STAMP)
	OMP_NUM_THREADS=1 LITE_SELFPLAY_FUZZ=$(FUZZ) $(BIN)/python -m pytest -q -s --timeout 0 tests/hostile

# This library's trainer over the class that Unsloth makes, on a CPU: five minutes. Unsloth patches what is beside it, so
# it has an environment of its own, which takes everything else from $(VENV).
$(VENV)-unsloth/.installed: $(STAMP) requirements-unsloth.lock
	@$(PYTHON) -m venv $(VENV)-unsloth
	@$(VENV)-unsloth/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-unsloth.lock
	@site=$$($(BIN)/python -c "import site; print(site.getsitepackages()[0])"); \
	  cd $$($(VENV)-unsloth/bin/python -c "import site; print(site.getsitepackages()[0])") && \
	  echo "import site; site.addsitedir('$$site')" > beside.pth
	@touch $@

test-unsloth: $(VENV)-unsloth/.installed
	$(VENV)-unsloth/bin/python -m pytest -q --timeout 600 tests/unsloth

# The core tests with the oldest and the newest releases that pyproject.toml lets in, torch aside, and with Python 3.12 and
# 3.13 where they are on the path; and whether the wheel can be installed beside hydra-core and omegaconf, unsloth, vllm and
# inspect-ai. It needs a network, and somebody else's release may turn it red: it is no part of test.
test-versions: $(STAMP)
	@$(PYTHON) -m venv $(VENV)-uv && $(VENV)-uv/bin/python -m pip install --quiet --disable-pip-version-check uv
	UV=$(VENV)-uv/bin/uv $(BIN)/python tests/versions.py

# On a machine with a CUDA card, with the packages of PYTHON: no .venv is made. What it lacks comes from WHEELS, if there.
test-gpu:
	$(PYTHON) tests/gpu/carry.py test --wheels $(WHEELS)

# Wheels for a card's machine that has no network, in parts of at most 60 MB under WHEELS. GPU_WHEELS=--with-model adds
# SmolLM2-135M.
gpu-wheels:
	$(PYTHON) tests/gpu/carry.py fetch --wheels $(WHEELS) $(GPU_WHEELS)

# What one draw of a GPU needs there, a folder a transfer: benchmarks/README.md. BASE is a .gguf file, DATA the folder of data.
gpu-draw:
	$(PYTHON) tests/gpu/carry.py pack --wheels $(WHEELS) --base $(BASE) --data $(DATA)

# Statements, lines and files by room.
weight:
	@$(PYTHON) benchmarks/weight.py

# The site, into site/. A dead link or an unknown name is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What a release consists of, into dist/: built from the last commit, and checked. A tag, TAG=v0.1.0, must be the version's.
dist:
	@test -z "$$TAG" || grep -qxF "version = \"$${TAG#v}\"" pyproject.toml || \
	  { echo "the tag $$TAG is not that of pyproject.toml's version" >&2; exit 1; }
	rm -rf $(VENV)-dist dist build/release && git worktree prune && git worktree add --quiet --detach build/release
	$(PYTHON) -m venv $(VENV)-dist && $(VENV)-dist/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(VENV)-dist/bin/python -m build --outdir dist build/release; \
	  status=$$?; git worktree remove --force build/release; rm -rf build; exit $$status
	$(VENV)-dist/bin/twine check --strict dist/*

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The lock is what was tested on a CPU: the newest versions inside pyproject.toml's bounds, with torch's CPU build.
lock:
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet torch==2.13.0 setuptools wheel ".[dev]"
	{ echo "# Made by 'make lock': what is tested on a CPU."; $(VENV)-lock/bin/python -m pip freeze --all \
	  | grep -v -e '^lite-selfplay' -e '^pip==' | sed 's/+cpu$$//'; } > requirements-cpu.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-unsloth $(VENV)-uv $(VENV)-oldest $(VENV)-newest $(VENV)-3.1? $(VENV)-dist build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
