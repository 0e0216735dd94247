# What people run. On a fresh Debian 12 with git and make every target installs what it needs (as root or through sudo).
#
#   make quickstart   build the program and train a small model on a book, split over 4 ranks
#   make quickstart-text   only fetch that book, to build/quickstart/jargon.txt.gz, where the recipes of examples/ read it
#   make test         build everything and run all tests but those labelled slow;  make test-slow  runs these
#   make release      build build/release/bin/ithaca only
#   make install      install the program, the library and their documentation to PREFIX (/usr/local)
#   make bench        build and run the benchmarks
#   make bundle       the GPU tests and benchmarks for a machine that has a GPU but no network, in build/bundle
#   make docs         write docs/config.md, and the tables of docs/migrating.md, from the option table
#   make doxygen      the documentation of the public headers, in build/doxygen/html
#   make format       clang-format all sources;  make check-format  only says what differs
#   make tidy         clang-tidy the library and the program;  make analyze  the static analyzer, which takes its time
#   make fuzz         build the fuzz targets and run each for 20 seconds;  FUZZ_SECONDS=600 make fuzz  for longer
#   make deps         install the packages that building and testing need
#   make clean        remove build/ (and nothing else)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
BUILD := build/release
PROGRAM := $(BUILD)/bin/ithaca
QUICKSTART_TEXT := build/quickstart/jargon.txt.gz
# C++ sources that the formatter and the linter look at.
SOURCES = $(shell git ls-files '*.cpp' '*.h' 2>/dev/null || find src bench -name '*.cpp' -o -name '*.h')
CLANG_FORMAT ?= clang-format-14
CLANG_TIDY ?= clang-tidy-14

.PHONY: help
help:
	@sed -n 's/^#  *make /  make /p' Makefile

.PHONY: deps deps-build deps-test deps-bench deps-checks
deps: deps-test
deps-build:
	@scripts/install_dependencies.sh build
deps-test:
	@scripts/install_dependencies.sh build test
deps-bench:
	@scripts/install_dependencies.sh build bench
deps-checks:
	@scripts/install_dependencies.sh build test checks

# The program without the tests; -DITHACA_BUILD_TESTS stays as it was in a folder that has them.
.PHONY: release
release: deps-build
	@if [ ! -f $(BUILD)/build.ninja ]; then cmake --preset release -DITHACA_BUILD_TESTS=OFF; fi
	@cmake --build $(BUILD) --target ithaca -j $(JOBS)

PREFIX ?= /usr/local
.PHONY: install
install: release
	@cmake --build $(BUILD) --target ithaca_whole -j $(JOBS)
	cmake --install $(BUILD) --prefix $(PREFIX)

.PHONY: quickstart
quickstart: release quickstart-text
	$(PROGRAM) train examples/quickstart/quickstart.yaml --overwrite
	$(PROGRAM) inspect runs/quickstart
	$(PROGRAM) inspect runs/quickstart/export

.PHONY: quickstart-text
quickstart-text:
	@scripts/fetch_quickstart_text.sh $(QUICKSTART_TEXT)

.PHONY: test
test: deps-test
	@cmake --preset release -DITHACA_BUILD_TESTS=ON
	@cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) -LE 'slow|gpu' --output-on-failure --no-tests=error -j $(JOBS)

# The full exactness matrices: about ten minutes on two cores, the same checks that `make test` samples.
.PHONY: test-slow
test-slow: deps-test
	@cmake --preset release -DITHACA_BUILD_TESTS=ON
	@cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) -L slow --output-on-failure --no-tests=error -j $(JOBS)

.PHONY: bench
bench: deps-bench
	@cmake --preset release -B build/bench -DITHACA_BUILD_TESTS=OFF -DITHACA_BUILD_BENCHMARKS=ON
	@cmake --build build/bench -j $(JOBS)
	@for program in build/bench/bin/*_bench; do echo "== $$program"; "$$program"; done

.PHONY: bundle
bundle:
	@cmake --preset cuda -DITHACA_BUILD_TESTS=ON && cmake --build build/cuda --target ithaca_gpu -j $(JOBS) && scripts/bundle.sh

.PHONY: docs
docs: release
	$(PROGRAM) options --markdown > docs/config.md.partial
	mv docs/config.md.partial docs/config.md
	$(PROGRAM) options --migrating docs/migrating.md > docs/migrating.md.partial
	mv docs/migrating.md.partial docs/migrating.md

.PHONY: doxygen
doxygen: deps-checks
	@scripts/doxygen.sh

.PHONY: format check-format
format: deps-checks
	$(CLANG_FORMAT) -i $(SOURCES)
check-format: deps-checks
	$(CLANG_FORMAT) --dry-run --Werror $(SOURCES)

# clang-tidy reads the compile commands of a clang build; headers are checked through the sources that include them. The
# static analyzer takes most of the time, so it is a target of its own. What is checked is the library and the program:
# neither tests nor what they share, nor CUDA, which needs its own compiler.
LINTED_SOURCES = $(shell git ls-files 'src/*.cpp' ':!src/backend/cuda/*' ':!*_test.cpp' ':!*testing*' ':!*harness*')
.PHONY: tidy analyze
tidy: deps-checks
	@cmake --preset asan-ubsan -DITHACA_BUILD_TESTS=ON >/dev/null
	@printf '%s\n' $(LINTED_SOURCES) | xargs -P $(JOBS) -n 1 $(CLANG_TIDY) --quiet --checks='-clang-analyzer-*' -p build/asan-ubsan
analyze: deps-checks
	@cmake --preset asan-ubsan -DITHACA_BUILD_TESTS=ON >/dev/null
	@printf '%s\n' $(LINTED_SOURCES) | xargs -P $(JOBS) -n 1 $(CLANG_TIDY) --quiet --checks='-*,clang-analyzer-*' -p build/asan-ubsan

.PHONY: fuzz
fuzz: deps-checks
	@FUZZ_JOBS=$(JOBS) scripts/fuzz.sh

.PHONY: clean
clean:
	rm -rf build
