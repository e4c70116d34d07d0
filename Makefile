# Two commands a newcomer needs: `make run` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BUILD_REQUIRES := scikit-build-core>=0.11 cython>=3.1 cython-cmake>=0.2.2 cmake>=3.26 ninja>=1.11 pip>=23
NATIVE := CMakeLists.txt pyproject.toml Makefile $(shell find csrc ollama_engine -name '*.pyx' -o -name '*.pxd' -o -name '*.[ch]' -o -name 'ggml.lock' -o -name fetch.py)
EXTRAS ?= test

.PHONY: run test lint bench build clean

run: $(VENV)/.built
	$(VENV)/bin/ollama-engine run demo "Once upon a time" --verbose

test: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest

lint: $(VENV)/.built $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/cython-lint ollama_engine
	$(VENV)/bin/lint-imports

build: $(VENV)/.built

# The build requirements go into .venv, not into pip's throw-away environment: a changed file rebuilds in seconds.
$(VENV)/.built: $(NATIVE)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check $(foreach r,$(BUILD_REQUIRES),"$(r)")
	$(PY) -m pip install --disable-pip-version-check --no-build-isolation --editable .
	touch $@

$(VENV)/.%: pyproject.toml | $(VENV)/.built
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) build
