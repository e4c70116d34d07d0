# Three commands a newcomer needs: `make run`, `make chat` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
comma := ,
PY := $(VENV)/bin/python
# Of packages, the few modules that are used are compiled when they are first imported.
export PIP_COMPILE := 0
BUILD_REQUIRES := scikit-build-core>=0.11 cython>=3.1 cmake>=3.26 ninja>=1.11 pip>=23
NATIVE := CMakeLists.txt pyproject.toml Makefile $(shell find csrc ollama_engine -name '*.pyx' -o -name '*.pxd' -o -name '*.[ch]' -o -name '*.cmake' -o -name 'ggml.lock' -o -name fetch.py -o -name transpile.py)

.PHONY: run chat test test-all test-failed test-peers test-ray clients ray parity lint types bench bench-smoke bench-check build reference portable-check gpu-check \
	docs docs-check wheel wheels check-package wheel-twice wheel-bare wheel-musl wheel-arm64 arm64-check sanitize tsan fuzz soak soak-store clean

run: $(VENV)/.built
	$(VENV)/bin/ollama-engine run demo "Tell me a story about a fox." --verbose

# A conversation with SmolLM2 135M (94 MB, downloaded once).
chat: $(VENV)/.built
	$(VENV)/bin/ollama-engine run "$$($(PY) bench/real_model.py)"

# Tests run in a process for each CPU, 8 at most; one that has done its share takes tests of another's.
# TEST_OPTIONS: more options of pytest's.
PROCESSES ?= -n auto --maxprocesses 8 --dist worksteal

# The quick suite: every behaviour, few examples of each.
test: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest $(PROCESSES) $(TEST_OPTIONS)

# The whole suite: every architecture, pre-tokenizer and instruction set, long random histories, a million draws.
test-all: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest --exhaustive $(PROCESSES) $(TEST_OPTIONS)

# Once more what failed last, where all of it depends on the speed of other processes: tests/plugins/repeats.py.
test-failed: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest --exhaustive --repeat-failed

# llama.cpp's tools from the same pinned sources, 5 to 15 minutes once, and what is compared with them live. Without
# them these tests are skipped, and others compare with what they once said.
test-peers: $(VENV)/.built $(VENV)/.test
	tools="$$($(PY) bench/peers.py build)" && \
	LLAMA_QUANTIZE="$$tools/llama-quantize" LLAMA_PERPLEXITY="$$tools/llama-perplexity" \
		$(PY) -m pytest --exhaustive tests/convert/quant tests/models/test_peer_perplexity.py

lint: $(VENV)/.built $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	PATH=$(VENV)/bin:$$PATH $(VENV)/bin/cython-lint ollama_engine
	$(VENV)/bin/lint-imports
	$(VENV)/bin/vermin --quiet --no-tips --violations --target=3.10- ollama_engine # what Python 3.10 cannot import

# What a type checker says of the programs in README.md and docs/: seconds, after 60 MB of Node once.
types: $(VENV)/.types
	$(PY) tests/check_types.py

# torch and transformers, for the tests of the whole suite that compare with them live (skipped without).
reference: $(VENV)/.reference

# Published clients of the server's APIs, for the tests that drive it with them (skipped without).
clients: $(VENV)/.clients .venv-litellm/.made

# litellm takes no openai from 3 on, and llm takes no other: it has an environment of its own.
.venv-litellm/.made:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check "litellm[mcp]>=1.50,<=1.110.2"
	touch $@

# Ray, for the tests of replicas and of jobs (skipped without). Its routers are an interface that Ray calls alpha: a new
# release is tried with `make ray RAY=2.61.0` before it is named here.
RAY ?= 2.60.0
ray: $(VENV)/.ray-$(RAY)
test-ray: $(VENV)/.built $(VENV)/.test $(VENV)/.ray-$(RAY)
	$(PY) -m pytest --exhaustive $(TEST_OPTIONS) tests/ray
$(VENV)/.ray-$(RAY): pyproject.toml | $(VENV)/.built
	$(PY) -m pip install --quiet --disable-pip-version-check "ollama_engine[ray]" "ray==$(RAY)"
	touch $@

# One table; the peer's columns are filled where `$(PY) bench/peers.py build` has built it.
bench: $(VENV)/.built $(VENV)/.bench
	$(PY) bench/board.py run

# How far each architecture is from transformers: prints it, and writes the gallery of docs/models.md.
parity: $(VENV)/.built $(VENV)/.test
	$(PY) -m tests.models.parity

bench-smoke: $(VENV)/.built $(VENV)/.bench
	$(PY) -m pytest bench --benchmark-disable -q
	$(VENV)/bin/ollama-engine bench demo -p 64 -n 16 -r 1 --json

# Fails where the engine's choice is slower than ggml's kernels, or the work beside computing slower than its target:
# ratios of one run, on any machine. BENCH_CHECK="--all" has every type; see bench/gate/__main__.py.
bench-check: $(VENV)/.built $(VENV)/.bench
	$(PY) -m bench.gate $(BENCH_CHECK)

# The pages of docs/ as a site in build/site, strict: a broken link or an undocumented public name fails (not with --quiet,
# which counts no warning). Look at it with `python3 -m http.server -d build/site`. docs-check opens it in Chromium.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build
docs-check: docs $(VENV)/.test $(VENV)/.clients
	$(PY) -m pytest --exhaustive tests/website

build: $(VENV)/.built

# Wheels for any x86-64 Linux in dist/, one for each of WHEEL_PYTHONS. All CPU variants of ggml take an hour on 2 cores;
# WHEEL_VARIANTS="x64;haswell;zen4" builds some. See wheels/README.md.
WHEEL_PYTHONS ?= $(PYTHON)
WHEEL_VARIANTS ?=
wheel: $(VENV)/.wheel
	$(PY) wheels/build.py $(foreach p,$(WHEEL_PYTHONS),--python $(p)) --variants "$(WHEEL_VARIANTS)"

# The same for every Python from 3.10 to 3.14 and 3.14t that is here (on PATH, or pyenv's); says which are missing.
# WHEEL_TESTS=tests runs the quick suite with each, installed; -n 2 and other options of pytest may be in it.
WHEEL_TESTS ?=
wheels: $(VENV)/.wheel
	$(PY) wheels/build.py --matrix --variants "$(WHEEL_VARIANTS)" --tests="$(WHEEL_TESTS)"

# The package as it is installed elsewhere: sdist, a wheel of it for this CPU, its symbols, contents, and an answer.
check-package: $(VENV)/.wheel
	$(PY) tests/check_package.py

# A wheel for Linux with musl (Alpine), tried in a root that has nothing of glibc: wheels/musl.py names what it needs.
wheel-musl: $(VENV)/.musl $(VENV)/.test
	$(PY) wheels/musl.py --variants "$(WHEEL_VARIANTS)" $(MUSL_TESTS)

# Whether two builds are the same bytes, 10 minutes; and a wheel in a Debian that has nothing else (apt install mmdebstrap).
wheel-twice: $(VENV)/.wheel
	$(PY) wheels/reproduce.py
wheel-bare:
	$(PYTHON) wheels/bare.py $(WHEEL)

# A wheel for ARM64 Linux by a cross compiler, and what it computes where QEMU emulates that: wheels/arm64.py names what
# both need. WHEEL_VARIANTS="armv8.0_1;armv8.2_2" builds some of ggml's CPU variants.
wheel-arm64: $(VENV)/.wheel
	$(PY) wheels/arm64.py --build --variants "$(WHEEL_VARIANTS)"
arm64-check: $(VENV)/.wheel $(VENV)/.test
	$(PY) wheels/arm64.py --variants "$(WHEEL_VARIANTS)" $(ARM64_TESTS)

# A build for any CPU in .venv-portable, and what it computes on CPUs that QEMU emulates (apt install qemu-user). Built
# are the variants of ggml that an emulated CPU can choose, one that it must not choose, and this machine's own:
# `make portable-check PORTABLE_VARIANTS=` builds all, which takes an hour on 2 cores.
PORTABLE_VARIANTS ?= x64;sse42;haswell;skylakex;icelake
portable-check: .venv-portable/.built $(VENV)/.test
	$(PY) -m pytest --exhaustive tests/robustness/test_lesser_cpus.py

.venv-portable/.built: $(NATIVE)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D) || { rm -rf $(@D); exit 1; }
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(foreach r,$(BUILD_REQUIRES),"$(r)")
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
		--config-settings=cmake.define.OLLAMA_ENGINE_PORTABLE=ON \
		"--config-settings=cmake.define.OLLAMA_ENGINE_CPU_VARIANTS=$(PORTABLE_VARIANTS)" \
		--config-settings=build-dir=build/portable --editable .
	touch $@

# What a GPU computes beside the CPU, and how fast beside llama.cpp; writes docs/gpu.md. GPU=cuda, vulkan or rpc (no GPU:
# another process stands in for one); without it what can be built here. See bench/gpu_check.py for GPU_CHECK.
gpu-check:
	$(PYTHON) -m bench.gpu_check $(if $(GPU),--gpu $(GPU)) $(GPU_CHECK)

# --verbose, for the lines that say how far it is.
BACKENDS_cuda := CUDA
BACKENDS_vulkan := VULKAN
.venv-gpu-%/.built: $(NATIVE)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D) || { rm -rf $(@D); exit 1; }
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(foreach r,$(BUILD_REQUIRES),"$(r)")
	$(@D)/bin/python -m pip install --verbose --disable-pip-version-check --no-build-isolation \
		--config-settings=cmake.define.OLLAMA_ENGINE_$(BACKENDS_$*)=ON --config-settings=build-dir=build/gpu-$* \
		--editable ".[test]"
	touch $@

# Our C and Cython built with the address and undefined-behaviour sanitizers, in a .venv and a build folder of their
# own, and the tests of the rooms with C in them: `make sanitize SANITIZE_TESTS="tests/sample --exhaustive"` runs others.
# - CPython frees nothing at exit, and every stack goes through it: leaks are what `make soak` looks for.
# - With malloc in place of CPython's pools, an access beyond a bytes object is seen, too.
# - GCC's checks of returned frames are off (their default): frames with 64-byte vectors are not aligned with them.
# - pytest's faulthandler would answer a fault before the sanitizer does.
# - libstdc++ is loaded with the sanitizers, because they look up its throw when the process starts.
# - Tests are several times as slow, and have five minutes.
SANITIZE_TESTS ?= tests/ml tests/kvcache tests/sample tests/tokenizer
preload = LD_PRELOAD="$(foreach l,$1 stdc++,$(shell $(CC) -print-file-name=lib$l.so))" PYTHONMALLOC=malloc
sanitize: .venv-sanitize/.built
	$(call preload,asan ubsan) UBSAN_OPTIONS=print_stacktrace=1 \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		$(<D)/bin/python -m pytest -p no:faulthandler --timeout 300 --capture=sys $(SANITIZE_TESTS)

# Our C and Cython, and ggml, built with the thread sanitizer, and tests where threads meet; others as with `sanitize`.
# - GCC's runtime does not know where new kernels put memory, unless setarch keeps them from drawing it.
# - CPython and packages are not instrumented: seen are the locks they take (the GIL above all), and what they copy.
#   (`ignore_noninstrumented_modules` takes all modules for such on Linux, and hides every copy of ours, too.)
# - Threads of OpenBLAS, numpy's, meet by means that are not seen.
# - The runtime does not survive threads in the child of a fork. Tests that rewrite what is read are about races;
#   too_many_calls computes for longer than its minute.
TSAN_TESTS ?= tests/runner/core tests/session/test_sessions.py tests/sample/test_rows.py tests/sample/test_masks.py \
	$(addprefix tests/engine/test_,async.py one_queue.py loading.py embed.py) \
	$(addprefix tests/ml/graph/test_,backend.py storage.py lifetimes.py) \
	$(addprefix tests/ml/ops/test_,small_batch.py paged.py) $(addprefix tests/ml/threads/test_,thread_governor.py cpu_gate.py)
tsan: .venv-tsan/.built
	OPENBLAS_NUM_THREADS=1 setarch -R env $(call preload,tsan) \
	TSAN_OPTIONS=suppressions=$(CURDIR)/tests/thread_sanitizer.supp \
		$(<D)/bin/python -m pytest -p no:faulthandler --timeout 300 --capture=sys \
		-k "not child and not rewrites and not too_many_calls" $(TSAN_TESTS)

SANITIZERS_sanitize := address,undefined
SANITIZERS_tsan := thread
SANITIZERS_fuzz := address,fuzzer-no-link
COMPILERS_fuzz = CC=$(CLANG) CXX=$(subst clang,clang++,$(CLANG))
.venv-%/.built: $(VENV)/.built
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D) || { rm -rf $(@D); exit 1; }
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(foreach r,$(BUILD_REQUIRES),"$(r)")
	$(COMPILERS_$*) $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
		--config-settings=cmake.define.OLLAMA_ENGINE_SANITIZE=$(SANITIZERS_$*) --config-settings=build-dir=build/$* \
		$(if $(filter tsan,$*),,--config-settings=cmake.define.OLLAMA_ENGINE_GGML_LIBRARIES="$$($(PY) -c \
			'import ollama_engine._lib as lib; print(*lib.__path__)')") --editable ".[test$(if $(filter fuzz,$*),$(comma)fuzz)]"
	touch $@

# Coverage-guided fuzzing for MINUTES minutes, of all of tests/fuzz/targets or of TARGET. What it finds lies in
# .fuzz/TARGET, as does the corpus that it grows from tests/fuzz/corpus/TARGET. Needs clang and its runtime.
MINUTES ?= 10
CLANG ?= $(lastword $(sort $(notdir $(wildcard /usr/bin/clang /usr/bin/clang-[0-9][0-9]))))
fuzz: .venv-fuzz/.built
	$(<D)/bin/python -m tests.fuzz.run --minutes $(MINUTES) $(TARGET)

# Random clients for MINUTES minutes, whose answers are compared; memory, descriptors and threads must stay flat.
soak: $(VENV)/.built $(VENV)/.plot
	$(PY) -m bench.soak --minutes $(MINUTES) --picture soak.png

# The prefix store: 1,000 conversations with restarts and kills, half an hour or more; then 16 processes for MINUTES minutes.
soak-store: $(VENV)/.built
	$(PY) bench/soak/prefix_store.py --conversations 1000
	$(PY) bench/soak/prefix_store.py --processes 16 --minutes $(MINUTES)

# KERNELS=all compiles kernels for every CPU, which a build for this one does not need.
# The build requirements go into .venv, not into pip's throw-away environment: a changed file rebuilds in seconds.
$(VENV)/.built: $(NATIVE) $(if $(KERNELS),ask-cmake)
	test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	$(PY) -m pip install --quiet --disable-pip-version-check $(foreach r,$(BUILD_REQUIRES),"$(r)")
	$(PY) -m pip install --disable-pip-version-check --no-build-isolation \
		--config-settings=cmake.define.OLLAMA_ENGINE_KERNELS=$(KERNELS) --editable .
	touch $@

.PHONY: ask-cmake
ask-cmake:

# The package is there already, which is seen to before pip would look for one of that name; the extra's are added.
$(VENV)/.%: pyproject.toml | $(VENV)/.built
	$(PY) -c "import ollama_engine.ml"
	$(PY) -m pip install --quiet --disable-pip-version-check "ollama_engine[$*]"
	touch $@

clean:
	rm -rf $(VENV) .venv-* build
