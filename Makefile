# Three commands a newcomer needs: `make run`, `make chat` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BUILD_REQUIRES := scikit-build-core>=0.11 cython>=3.1 cython-cmake>=0.2.2 cmake>=3.26 ninja>=1.11 pip>=23
NATIVE := CMakeLists.txt pyproject.toml Makefile $(shell find csrc ollama_engine -name '*.pyx' -o -name '*.pxd' -o -name '*.[ch]' -o -name 'ggml.lock' -o -name fetch.py)

.PHONY: run chat test test-all lint bench bench-smoke bench-check build reference clean

run: $(VENV)/.built
	$(VENV)/bin/ollama-engine run demo "Tell me a story about a fox." --verbose

# A conversation with SmolLM2 135M (94 MB, downloaded once).
chat: $(VENV)/.built
	$(VENV)/bin/ollama-engine run "$$($(PY) bench/real_model.py)"

# The quick suite: every behaviour, few examples of each.
test: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest

# The whole suite: every architecture, pre-tokenizer and instruction set, long random histories, a million draws.
test-all: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest --exhaustive

lint: $(VENV)/.built $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	PATH=$(VENV)/bin:$$PATH $(VENV)/bin/cython-lint ollama_engine
	$(VENV)/bin/lint-imports

# torch and transformers, for the tests of the whole suite that compare with them live (skipped without).
reference: $(VENV)/.reference

# One table; the peer's columns are filled where `$(PY) bench/peers.py build` has built it.
bench: $(VENV)/.built $(VENV)/.bench
	$(PY) bench/board.py run

bench-smoke: $(VENV)/.built $(VENV)/.bench
	$(PY) -m pytest bench --benchmark-disable -q
	$(VENV)/bin/ollama-engine bench demo -p 64 -n 16 -r 1 --json

# Fails where a quick row is slower than the committed baseline by more than a quarter.
bench-check: $(VENV)/.built $(VENV)/.bench
	$(PY) bench/board.py check

build: $(VENV)/.built

# The build requirements go into .venv, not into pip's throw-away environment: a changed file rebuilds in seconds.
$(VENV)/.built: $(NATIVE)
	test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	$(PY) -m pip install --quiet --disable-pip-version-check $(foreach r,$(BUILD_REQUIRES),"$(r)")
	$(PY) -m pip install --disable-pip-version-check --no-build-isolation --editable .
	touch $@

$(VENV)/.%: pyproject.toml | $(VENV)/.built
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) build
