# Two commands do all the set-up on a fresh machine with Python 3.10 to 3.14 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The build of ONNX Runtime: gpu, or cpu.
EXTRA ?= gpu
LOWEST := .venv-lowest
# What the lowest allowed versions are tested on: the first Python 3.10 that runs, on PATH or pyenv's.
PYTHON_LOWEST ?= $(shell for p in python3.10 $$HOME/.pyenv/versions/3.10.*/bin/python3.10; do \
	$$p --version >/dev/null 2>&1 && echo $$p && break; done)
# A test waits for the processes that it starts, so that two cores are not busy with three.
PYTEST_WORKERS ?= 4
# Tests write and remove many small files, which memory is faster at: where it has 4 GB of room and may hold programs.
TEST_FOLDER ?= $(shell grep -qs ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts || df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "/dev/shm" }')
# PyTorch without CUDA, from an index that has it.
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname)),+cpu)
# Tests that the versions of libraries can change: models, values, runtimes, help and output. `make test-lowest LOWEST_TESTS=tests` runs all.
LOWEST_TESTS ?= tests/onnxlib tests/tensors tests/targets tests/report tests/test_api.py tests/test_errors.py \
	$(addprefix tests/cli/test_cli_,$(addsuffix .py,compare diagnose entry files precision reduce))
# The corpus of recorded answers; and tests that install releases or packages, or start other hosts. CI runs both beside `make test`.
ANSWERS := tests/answers
INSTALLS := tests/cli/test_cli_releases.py tests/probe/test_environments.py tests/examples tests/places
# Tests that run no model: for the inner loop.
QUICK := tests/search tests/tensors tests/report tests/docs --ignore tests/report/test_notebook.py --ignore tests/docs/test_from_polygraphy.py

.PHONY: demo install check test test-answers test-installs truth fuzz chaos lint format docs picture site release bench test-slow test-lowest install-lowest clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA)]'
	$(BIN)/python -m compileall -q bisect_trt
	touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA)]' --group test --group lint
	# Beside whichever build of ONNX Runtime is there: its requirement would install the CPU build into the same folder.
	$(BIN)/python -m pip install --quiet --no-deps 'onnxruntime-qnn>=2.3' \
		|| echo "onnxruntime-qnn cannot be installed here, so the tests of QNN are skipped"
	$(BIN)/python -m compileall -q bisect_trt
	touch $@ $(VENV)/.demo

# Compiling all of PyTorch takes longer than unpacking it; the tests import little of it.
$(VENV)/.torch: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile '$(TORCH)' onnxscript \
		|| echo "$(TORCH) cannot be installed, so the tests that need PyTorch are skipped"
	touch $@

demo: $(VENV)/.demo  ## Diagnose a ViT whose fp16 overflows, and see its reproducer fail as promised.
	rm -rf demo
	$(BIN)/python examples/vit_overflow/make_model.py -o demo
	cd demo && ../$(BIN)/bisect-trt diagnose model.onnx --onnxrt --fp16 -o reproducer --json result.json
	@echo; echo "The reproducer, on its own (exit status 1 is what it promises):"
	@$(BIN)/python demo/reproducer/reproduce.py; status=$$?; echo "exit status $$status"; test $$status -eq 1

install: $(VENV)/.torch  ## What `make test` runs on.

check: lint  ## Under a minute, for the inner loop: lint, types, and the tests that run no model.
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -q -m 'not slow and not any_version and not browser' $(QUICK)

test: TESTS := tests $(addprefix --ignore ,$(ANSWERS) $(INSTALLS))
test-answers: TESTS := $(ANSWERS)
test-installs: TESTS := $(INSTALLS)
test: $(VENV)/.torch  ## Every test that needs no GPU, but for what the other targets run.
test-answers: $(VENV)/.torch  ## Is each recorded answer the same, with no question more?
test-installs: $(VENV)/.torch  ## Releases, packages and other hosts: environments that are made for the test.
test test-answers test-installs:
	$(TEST_FOLDER:%=TMPDIR=%) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -q -m 'not slow' -o tmp_path_retention_count=1 $(TESTS)

test-slow: $(VENV)/.torch  ## Corpora and whole stories: the pages followed, real networks, kills; and six times the examples of each property.
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist load --maxschedchunk 1 -q -m 'slow or hypothesis'

truth: $(STAMP)  ## Known bugs of many releases, planted, and trained networks: is every answer exact? Installs the releases; takes many minutes.
	UV_OFFLINE=0 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -q tests/truth/loops.py tests/truth/answers.py tests/truth/elsewhere.py tests/truth/workarounds.py tests/truth/causes.py tests/truth/builds.py tests/truth/fusions.py tests/truth/trained_networks.py tests/truth/qnn.py

fuzz: $(STAMP)  ## Twenty thousand broken models, values and command lines, and as many changed folders of runs, each of which must end with a sentence; properties on examples that no test had; four hundred flaky searches; fifty kills.
	BISECT_TRT_FUZZ_RUNS=20000 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -q tests/fuzz
	$(BIN)/python -m pytest -q tests/fuzz/flaky_searches.py
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -q -m hypothesis
	BISECT_TRT_CHAOS_KILLS=50 $(BIN)/python -m pytest -q tests/chaos/test_chaos.py -k kills

chaos: $(STAMP)  ## Three hundred kills, a Ray cluster that loses nodes, full disks, jumping clocks, edited journals; an hour.
	$(BIN)/python -m pip install --quiet --editable '.[gpu,ray]'
	BISECT_TRT_CHAOS_KILLS=300 $(BIN)/python -m pytest -q -s tests/chaos

test-lowest: install-lowest  ## Tests of $(LOWEST_TESTS) on the lowest versions that pyproject.toml allows.
	@test ! -x $(LOWEST)/bin/python || \
	$(LOWEST)/bin/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -q -m 'not slow and not any_version and not browser' $(LOWEST_TESTS)

install-lowest:
	@test -n "$(PYTHON_LOWEST)" || { echo "test-lowest: skipped, there is no Python 3.10"; exit 0; }; \
	set -e; test -x $(LOWEST)/bin/python || $(PYTHON_LOWEST) -m venv $(LOWEST); \
	$(LOWEST)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'; \
	$(LOWEST)/bin/python -m pip install --quiet --editable '.[gpu]' --group test --constraint tests/lowest.txt; \
	$(LOWEST)/bin/python -m pip install --quiet --no-deps tensorrt==8.6.0 \
		|| echo "test-lowest: TensorRT 8.6.0 cannot be installed here, so the tests that import it are skipped"

# Not while pip writes the packages that mypy reads.
lint: $(STAMP) | $(filter install,$(MAKECMDGOALS))  ## ruff, mypy, import-linter.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## What is generated: the options' page and keywords, from their declarations, the schema of answers and the fields of results.
	$(BIN)/python docs/reference.py > docs/reference.md
	$(BIN)/python docs/schema.py > docs/answer.schema.json
	$(BIN)/python docs/keywords.py > bisect_trt/keywords.pyi && $(BIN)/ruff format --quiet bisect_trt/keywords.pyi
	$(BIN)/python docs/draft.py > bisect_trt/report/draft.pyi && $(BIN)/ruff format --quiet bisect_trt/report/draft.pyi

picture: $(STAMP)  ## The README's picture: runs the diagnosis that it shows, which takes minutes.
	$(BIN)/python docs/session.py > docs/session.svg.new && mv docs/session.svg.new docs/session.svg

site: $(STAMP)  ## The pages of docs/ as a site in build/site, which opens from the disk; fails if a link or the navigation lacks one.
	$(BIN)/python -m pip install --quiet --group site
	$(BIN)/python docs/site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)  ## Each figure beside its aim and Polygraphy's; takes many minutes. `python -m benchmarks NAME` for one.
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks

release: $(STAMP)  ## What is released, as somebody gets it: built, installed into clean environments, run and typed against.
	$(BIN)/python -m pip install --quiet --group release --group site
	UV_OFFLINE=0 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -q tests/release/product.py

clean:
	rm -rf $(VENV) $(LOWEST) demo .bisect-trt build dist
