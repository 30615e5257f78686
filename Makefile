# make setup | demo | test | test-hf | test-cluster | test-web | portable | torture | faults | bench | size | numbers | docs | format | clean.   Needs Python >= 3.10 and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
HF := .venv-hf

.PHONY: setup demo test test-hf test-cluster test-web test-sanitized portable torture faults bench size numbers docs format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard src/saffu/native/*.* src/saffu/native/*/*.*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "saffu needs Python 3.10 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/saffu train --out demo-model --force
	$(BIN)/saffu eval demo-model
	$(BIN)/saffu generate demo-model --samples 3 --seed 1
	$(BIN)/saffu explain demo-model "Return the name of the"

test: setup
	$(BIN)/ruff check src reference tests lab benchmarks docs/*.py hatch_build.py
	$(BIN)/ruff format --check src reference tests lab benchmarks docs/*.py hatch_build.py
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The oldest transformers that exports work with (`test` has the newest), and lm_eval; in an environment of their own.
test-hf: $(HF)/.installed
	$(HF)/bin/python -m pytest tests/model/test_export.py tests/model/test_lm_eval.py

$(HF)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(HF)
	$(HF)/bin/python $(INSTALL) 'transformers==4.51.*' 'lm_eval[hf]' --editable '.[dev]'
	@touch $@

# Simulated nodes, one of which is killed; a killed driver; a million lines.
test-cluster: setup
	$(BIN)/python -m pytest tests/cluster/test_*.py tests/cluster/faults.py tests/cluster/many_lines.py

# The page of `saffu play`, and the one without a server, in a real browser: the chromium on PATH, or Debian's.
test-web: setup
	$(BIN)/python $(INSTALL) playwright
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { apt-get update -qq && apt-get install -y -qq chromium; }
	npm install --silent --prefix $(VENV)/axe axe-core puppeteer-core || echo "no npm: accessibility and Firefox are not checked"
	$(BIN)/python -m pytest tests/play/test_*.py tests/play/browser.py tests/play/static_page.py

# The kernels with every compiler that is installed, also for other systems, run under emulators.
portable:
	$(PYTHON) tests/native/portable.py

# The kernels under AddressSanitizer and UBSan: their tests, and folders whose arrays were changed; then threads under
# ThreadSanitizer. At the end, they are compiled as usual.
SANITIZERS := -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
BUILD := -c "import hatch_build as h; h.compile_kernels(h.LIBRARY)"
LIB = $$(g++ -print-file-name=lib$(1).so)
SANITIZED := build/sanitized
test-sanitized: setup
	PYTHONPATH=tests $(BIN)/python -m torture.mutants --prepare $(SANITIZED)
	CXXFLAGS="$(SANITIZERS)" $(BIN)/python $(BUILD)
	status=0; \
	export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONPATH=tests; \
	LD_PRELOAD="$(call LIB,asan) $(call LIB,ubsan)" $(BIN)/python -m pytest tests/calibrated tests/companion/test_kernels.py tests/test_damage.py -k "not paper" -q || status=1; \
	LD_PRELOAD="$(call LIB,asan) $(call LIB,ubsan)" $(BIN)/python -m torture.mutants $(SANITIZED) --number $(or $(NUMBER),1000) --out docs/results/sanitized.json || status=1; \
	CXXFLAGS="-g -O1 -fsanitize=thread" $(BIN)/python $(BUILD); \
	LD_PRELOAD="$(call LIB,tsan)" TSAN_OPTIONS=exitcode=66:ignore_noninstrumented_modules=1 $(BIN)/python -m torture.threads $(SANITIZED) || status=1; \
	$(BIN)/python $(BUILD); exit $$status

torture: setup
	PYTHONPATH=tests $(BIN)/python -m torture --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) --out docs/results/torture.json

faults: setup
	PYTHONPATH=tests $(BIN)/python -m torture.faults --out docs/results/faults.json

bench: setup
	$(BIN)/python benchmarks/bench.py $(BENCH)

# Tokens and lines of code, commands, options, and classes; an error if src is over the budget in pyproject.toml.
size: setup
	$(BIN)/python -m lab size

# Numbers, tables, and figures of README.md and docs/, from docs/results.
numbers: setup
	$(BIN)/python -m lab pages
	$(BIN)/python docs/make_terminal_figure.py

# The documentation site, into build/site; a link or an anchor that leads nowhere is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: setup
	$(BIN)/ruff check --fix src reference tests lab benchmarks docs/*.py hatch_build.py
	$(BIN)/ruff format src reference tests lab benchmarks docs/*.py hatch_build.py
	$(BIN)/python docs/make_api.py

clean:
	rm -rf $(VENV) $(HF) demo-model build dist wheelhouse .pytest_cache .mypy_cache .ruff_cache .hypothesis
