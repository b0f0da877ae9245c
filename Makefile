# Everything runs in virtual environments made here; nothing is installed outside this folder.
#
#   make demo    train a small split model on the Python standard library's source (3 to 4 minutes on 2 cores)
#   make test    all tests
#   make lint    ruff, clang-format, pyright, import-linter
#
# PYTHON       the Python to make environments with, 3.11 or newer
# PIP_OPTIONS  options for pip, such as the index of PyTorch's CPU-only builds
# JOBS         test processes side by side

PYTHON ?= python3
PIP_OPTIONS ?=
JOBS ?= 2
KERNELS := src/smht/ops/cpu/*.h src/smht/ops/cpu/*.cpp
VENV := .venv
OLDEST := .venv-oldest
INSTALL := -m pip install --disable-pip-version-check --quiet $(PIP_OPTIONS)
# One thread a process: two processes of two threads each would fight over two cores.
PYTEST := -m pytest -p no:cacheprovider -n $(JOBS)

.PHONY: demo test test-oldest lint format clean

demo: $(VENV)/.run
	$(VENV)/bin/smht train --time 150s

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python $(PYTEST)

# What touches transformers once more, on the oldest version supported; what torch.compile makes of it is no other there.
test-oldest: $(OLDEST)/.dev
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python $(PYTEST) tests/models tests/training -m 'not slow' -k 'not compil'

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(KERNELS)
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/lint-imports

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(KERNELS)

$(VENV)/bin/python $(OLDEST)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "smht needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(@D)/..

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	$< $(INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$< $(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.run

# All but transformers, and what it needs otherwise, is that of the other environment.
$(OLDEST)/.dev: $(VENV)/.dev $(OLDEST)/bin/python
	$(OLDEST)/bin/python -c 'import site, subprocess, sysconfig; \
		there = subprocess.check_output(["$(VENV)/bin/python", "-c", "import sysconfig; print(sysconfig.get_path(\"purelib\"))"]); \
		open(sysconfig.get_path("purelib") + "/shared.pth", "w").write(f"import site; site.addsitedir({there.decode().strip()!r})")'
	$(OLDEST)/bin/python $(INSTALL) 'transformers==5.17.*'
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) build src/*.egg-info
