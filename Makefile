# Each target alone, on a fresh clone, makes the environment it needs and runs. Only Python (3.11 or newer) and make are assumed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all test-frameworks lint docs clean new-codec new-memory new-policy gpu gpu-kernels gpu-wheels

demo: $(READY)
	$(BIN)/gravac demo $(ARGS)

# What runs in one process, and smoke tests of the rest: five minutes. make test-all: everything.
test: $(READY)
	$(BIN)/python -m tools.run_tests fast $(ARGS)

test-all: $(READY)
	$(BIN)/python -m tools.run_tests all $(ARGS)

# Training frameworks, each in an environment of its own with what its page in docs/frameworks/ installs. Not in CI:
# the environments take about 1.5 GB and several minutes. make test-frameworks FRAMEWORKS=lightning: that one only.
FRAMEWORKS ?= lightning transformers accelerate ray torchtitan

test-frameworks: $(FRAMEWORKS:%=.venv-frameworks/%/.ready)
	for each in $(FRAMEWORKS); do \
		OMP_NUM_THREADS=1 .venv-frameworks/$$each/bin/python -m pytest -q tests/frameworks/test_$$each.py $(ARGS) || exit 1; \
	done

.venv-frameworks/%/.ready: pyproject.toml constraints.txt
	test -x .venv-frameworks/$*/bin/python || $(PYTHON) -m venv .venv-frameworks/$*
	.venv-frameworks/$*/bin/python -m pip install --quiet --no-compile --upgrade "pip>=25.1"
	.venv-frameworks/$*/bin/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	.venv-frameworks/$*/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[$*]"
	.venv-frameworks/$*/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --group frameworks
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# make new-codec NAME=mycodec KIND=quantizer (or sparsifier): a skeleton, registered, with its pages and tests.
# CONTRIBUTING.md goes on from there.
new-codec: $(READY)
	$(BIN)/python -m tools.new $(or $(KIND),sparsifier) $(NAME)

new-memory: $(READY)
	$(BIN)/python -m tools.new memory $(NAME)

new-policy: $(READY)
	$(BIN)/python -m tools.new policy $(NAME)

GPU_PYTHON ?= python3

# Wheels for a GPU machine without a network, in build/gpu-wheels. CONTRIBUTING.md says how they get there.
gpu-wheels: $(READY)
	$(BIN)/python -m tools.gpu.wheels $(ARGS)

# Triton's kernels for the machine's GPU, in build/gpu-kernels; with the Python that has the machine's Triton.
gpu-kernels:
	$(GPU_PYTHON) -m tools.gpu.ahead $(ARGS)

# Tests and figures on a machine with a GPU, with its own Python and torch. make gpu STEP=gpt: that step only.
gpu:
	$(GPU_PYTHON) -m tools.gpu $(STEP:%=--step %) $(ARGS)

# Strict and without a network: a broken link or reference and a missing docstring fail. -E: nothing from an earlier build.
docs: $(READY)
	$(BIN)/python -m sphinx -E -W -n --keep-going -q -b html -c docs -d build/doctrees . build/site
	@echo "The site: build/site/index.html"

# Where the surroundings forbid byte code, every process would compile all of torch that it imports.
unexport PYTHONDONTWRITEBYTECODE

# torch first and alone: at this exact version, so that nothing later pulls another build of it. Without byte code:
# Python makes that of what is imported, the least part of what is installed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gravac needs Python 3.11 or newer; try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[digits]" --group dev
	touch $(READY)

clean:
	rm -rf .venv .venv-frameworks build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
