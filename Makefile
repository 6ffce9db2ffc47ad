# `make` lists the targets. Each is complete on a fresh Debian 12 or 13: it gets what it needs first (scripts/setup.sh).
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
export JOBS

.DEFAULT_GOAL := help
.PHONY: help setup build test demo bench lint format docs nightly clean configure python-ready core-ready

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1@\2/' | column -t -s @

setup: ## get everything: compiler, libraries, .venv, checkers (tries again what failed before)
	@scripts/setup.sh --retry core python lint

core-ready:
	@scripts/setup.sh core python

# The Python module is built for the environment's own interpreter, so a new .venv needs a new configuration.
configure: core-ready
	@if [ ! -e build/release/build.ninja ] || { [ -e $(PYTHON) ] && [ build/release/build.ninja -ot .venv/installed-requirements ]; }; then \
	  if [ -x $(PYTHON) ]; then cmake --preset release -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON); \
	  else cmake --preset release -DTIDE_BUILD_PYTHON=OFF; fi; fi

build: configure ## the library, the tide command, the tests, the benchmarks and the Python module (build/release)
	@cmake --build --preset release -j $(JOBS)

test: build ## every test: C++, C++ under sanitizers, Python; ends in one line of totals
	@scripts/test.sh

demo: build ## train a small model with TIDE and without it and compare; without PyTorch, the C++ example
	@scripts/demo.sh

bench: build ## measure: the micro-benchmarks and the scripts of bench/
	@scripts/bench.sh

lint: configure ## format, ruff, clang-tidy, layers, text; CHANGED=1 tidies only what differs from the last commit
	@scripts/setup.sh lint
	@scripts/lint.sh

format: core-ready ## rewrite the sources in the project's format
	@scripts/setup.sh lint
	@scripts/format.sh

docs: configure ## the reference of the public headers (build/docs/html)
	@scripts/setup.sh docs
	@scripts/docs.sh

nightly: build ## what takes long: all tests under ThreadSanitizer and the other sanitizers, long property tests
	@scripts/nightly.sh

clean: ## remove what was built; .venv stays
	@rm -rf build python/tide/_tide*.so
