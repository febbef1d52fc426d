# make book    the book in _build/html, after every check of its pages
# make test    all tests, and every notebook that has changed since it was run
# make help    the other targets

PYTHON ?= python3
# cpu: PyTorch without CUDA, which uv fetches; or an index for pip that has the build of torch you want.
TORCH ?=
TORCH_INDEX ?=
# Processes side by side: the processors, eight at most.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$(( n > 8 ? 8 : n )))

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := book

ENV := .venv
PY := $(ENV)/bin/python
DONE := _build/.done
READY := $(ENV)/.ready
# A notebook's figures and warnings are its own business.
unexport MPLBACKEND PYTHONWARNINGS PYTHONHOME
export PYTHONPATH :=
# Processes side by side have a thread each: those that wait for each other's processors take twice the time.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
ALL_THREADS := env -u OMP_NUM_THREADS -u OPENBLAS_NUM_THREADS -u MKL_NUM_THREADS

BOOK := $(shell find attnmath chapters tools -type f ! -path '*/__pycache__/*' ! -path '*/.*') _config.yml _toc.yml
TESTS := $(shell find tests -type f ! -path '*/__pycache__/*')
NOTEBOOKS := $(wildcard chapters/*.ipynb)
KERNELS := $(PY) tools/kernels.py    # forks the kernels of a command's notebooks
NBVAL := --nbval --nbval-kernel-name=book --nbval-cell-timeout=60 -n $(JOBS) --dist loadfile
ALONE := -p no:hypothesispytest    # half a second for each worker that has notebooks alone
# Of the notebooks those that have changed, or what they import: tools/runs.py.
COMPARED = changed=$$($(PY) tools/nb.py changed); [ -z "$$changed" ] || $(KERNELS) $(PY) -m pytest --quiet $(NBVAL) $(ALONE) $$changed; $(PY) tools/nb.py compared
CHECKS := $(DONE)/pairs $(DONE)/ledger $(DONE)/made $(DONE)/pages $(DONE)/notebooks
LEDGER := chapters/ledger.md

.PHONY: book test at-length test-adapters check html chapter chapter-rows chapter-notebook env lab notebooks text ledger fresh-ledger pages museum trained second-order rounding ring misprints proofs portable lint mutants exact-mutants identities wild wheel accessible kernels kernels-slice clean help

help:
	@echo 'make book        check every page and notebook, then build _build/html'
	@echo 'make check       the checks of make book alone'
	@echo 'make html        the pages without the checks, to look at while writing'
	@echo 'make chapter C=softmax  check, prove, misprint, run and render one chapter; the rest stays as it is'
	@echo 'make test        all tests and notebooks; of two collections a slice'
	@echo 'make at-length   the rest of them: 11 pairs of mistakes, a thousand random problems (minutes)'
	@echo 'make test-adapters  the functions on JAX'"'"'s arrays; installs JAX into the environment'
	@echo 'make notebooks   texts -> executed notebooks, byte for byte reproducible'
	@echo 'make text        the same for notebooks whose code is as it was; runs nothing'
	@echo 'make ledger      measure every equation, prove it and try its misprints; write $(LEDGER)'
	@echo 'make fresh-ledger  the same, compared with $(LEDGER) byte for byte (minutes)'
	@echo 'make pages       write the overview of the sources, errata, cheat sheet, museum and contents again'
	@echo 'make museum      measure again which tests accept the mistakes of the museum (minutes)'
	@echo 'make trained     train the transformer of the chapter on training again (minutes)'
	@echo 'make second-order  measure time and memory of the derivatives of attention again (20 minutes)'
	@echo 'make rounding    measure again how much of the bounds of rounding right programs use (minutes)'
	@echo 'make ring        train a small model over two processes; errors, bytes and tiles of attention over four (minutes)'
	@echo 'make misprints   try every one-symbol misprint of every displayed formula'
	@echo 'make proofs      prove every displayed formula that is algebraic, in exact arithmetic'
	@echo 'make lint        ruff, mypy and codespell'
	@echo 'make lab         JupyterLab with the chapters'
	@echo 'make portable    do the stored outputs hold on an old processor?'
	@echo 'make accessible  axe-core on every built page, in headless Chromium; the page that moves, moved'
	@echo 'make kernels     the Triton kernels in the interpreter, and compiled; installs Triton (quarter of an hour)'
	@echo 'make kernels-slice  what tells most of it, in three minutes'
	@echo 'make mutants     mutation testing of the formula modules (long)'
	@echo 'make exact-mutants  every small change of a formula function, judged by exact arithmetic (minutes)'
	@echo 'make identities  collected identities, false ones at 100 seeds each: none may be proved (half an hour)'
	@echo 'make wild        attention code of others before the checker: right, wrong, hostile (quarter of an hour)'
	@echo 'make wheel       the package in dist/'
	@echo 'make clean       remove what was made; keeps the environment $(ENV)'
	@command -v "$(PYTHON)" > /dev/null && "$(PYTHON)" tools/lines.py || true
	@echo 'Variables: PYTHON=python3.12, TORCH=cpu (without CUDA), TORCH_INDEX=address of a pip index with the torch you want, JOBS=4'

# ---- the environment -------------------------------------------------------------------------

env: $(READY)

$(READY): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" > /dev/null || { echo "There is no $(PYTHON). Name a Python: make PYTHON=python3.12 book"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$("$(PYTHON)" --version) is too old; 3.11 or newer is needed. Name one: make PYTHON=python3.12 book"; exit 1; }
	@[ -x $(PY) ] || { echo "Making the environment $(ENV) (once; a few minutes)"; "$(PYTHON)" -m venv $(ENV); }
	@$(if $(TORCH),$(PY) -m pip install --quiet --requirement requirements-cpu.lock)
	@$(if $(TORCH),$(PY) -m uv pip install --quiet --python $(PY) --torch-backend=$(TORCH) "$$(grep '^torch==' requirements.lock)")
	@$(if $(TORCH_INDEX),$(PY) -m pip install --quiet --index-url "$(TORCH_INDEX)" "$$(grep '^torch==' requirements.lock)")
	@$(PY) -m pip install --quiet --requirement requirements.lock
	@$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# ---- checks, each done again only when something that it reads has changed --------------------

$(DONE):
	@mkdir -p $@

$(DONE)/pages: $(READY) $(BOOK) $(TESTS) | $(DONE)
	$(PY) -m attnmath.page check
	@touch $@

$(DONE)/pairs: $(READY) $(BOOK) | $(DONE)
	$(PY) tools/nb.py check
	@touch $@

$(DONE)/ledger: $(READY) $(BOOK) $(TESTS) | $(DONE)
	$(PY) -m attnmath.page ledger --check
	@touch $@

# The overview of the sources, the errata, the cheat sheet, the museum's list and the contents in
# README.md are made from what stands elsewhere.
$(DONE)/made: $(READY) $(BOOK) README.md | $(DONE)
	$(PY) tools/pages.py check
	$(PY) tools/museum.py check
	@touch $@

$(DONE)/notebooks: $(READY) $(BOOK) | $(DONE)
	$(COMPARED)
	@touch $@

# ---- the book --------------------------------------------------------------------------------

# The checks and the rendering run side by side. A book that fails a check is not left to read;
# `make html` renders without checks, for an author who wants to look.
SIDE_BY_SIDE := -j3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

book: $(READY)
	@$(MAKE) $(SIDE_BY_SIDE) $(DONE)/book || { rm -rf _build/html $(DONE)/html; exit 1; }

check: $(READY)
	@$(MAKE) $(SIDE_BY_SIDE) $(CHECKS)

$(DONE)/book: $(CHECKS) $(DONE)/html
	@touch $@
	@echo 'All checks passed. The book: _build/html/index.html'

# Python does not look for garbage meanwhile, of which there is little: a quarter of the time.
$(DONE)/html: $(READY) $(BOOK) | $(DONE)
	$(PY) -c 'import gc; gc.disable(); from jupyter_book.cli.main import main; main()' build . -q -W -n --keep-going > $(DONE)/html.log 2>&1 \
	  || { cat $(DONE)/html.log; exit 1; }
	@test -f _build/html/index.html
	@touch $@

html: $(DONE)/html

# What a change of one chapter asks for; what nothing has changed for is not done again.
chapter: $(READY)
	@test -f "chapters/$(C).md" || { echo "Name a chapter: make chapter C=softmax"; exit 1; }
	@$(MAKE) $(SIDE_BY_SIDE) chapter-rows chapter-notebook
	$(PY) tools/pages.py
	@$(PY) tools/nb.py text | grep -v unchanged || true
	@$(PY) tools/words.py | grep -e '^$(C) ' -e '^the way' -e ' over$$' || true
	@$(MAKE) html

chapter-rows:
	$(PY) -m attnmath.page ledger $(C)

chapter-notebook:
	$(if $(shell grep -l '{code-cell}' 'chapters/$(C).md'),$(PY) tools/nb.py run $(C))

test: $(READY)
	$(COMPARED)
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "not at_length" tests

# What `make test` has a slice of: 11 of 18 pairs of mistakes, 170 random problems of each kind instead of 60.
at-length: $(READY)
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m at_length tests

notebooks: $(READY)
	$(PY) tools/nb.py run

text: $(READY)
	$(PY) tools/nb.py text

ledger: $(READY)
	$(PY) -m attnmath.page ledger

# Displays, proofs and misprints in one run; whatever was written by hand is found.
fresh-ledger: $(READY)
	$(PY) -m attnmath.page ledger --compare

pages: $(READY)
	$(PY) tools/pages.py
	$(PY) tools/museum.py page

museum: $(READY)
	$(PY) tools/museum.py measure
	$(PY) tools/museum.py examine

trained: $(READY)
	$(ALL_THREADS) $(PY) tools/train.py

second-order: $(READY)
	$(ALL_THREADS) $(PY) benchmarks/second_order.py

rounding: $(READY)
	$(PY) benchmarks/rounding.py --jobs $(JOBS)

# Tokens over several processes: an example, errors beside one process, bytes and tiles.
ring: $(READY)
	$(PY) examples/ring.py
	$(PY) benchmarks/ring.py

misprints: $(READY)
	$(PY) -m attnmath.page misprints

proofs: $(READY)
	$(PY) -m attnmath.page prove

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m codespell_lib

# An old processor, emulated: no AVX in the linear algebra, in NumPy or in torch.
portable: $(READY)
	OPENBLAS_CORETYPE=Nehalem ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
	NPY_DISABLE_CPU_FEATURES="$$($(PY) tools/portable.py)" \
	$(KERNELS) $(PY) -m pytest --quiet $(NBVAL) $(ALONE) chapters

wheel: $(READY)
	rm -rf dist
	$(PY) -m build --no-isolation --outdir dist .

# ---- tools with locks of their own -----------------------------------------------------------

$(ENV)/.ready-%: requirements-%.lock $(READY)
	@$(PY) -m pip install --quiet --requirement $<
	@touch $@

# Trusted, so that figures show; what Jupyter remembers stays in the environment. What is listed
# and opened first: tools/jupyter_config.py.
lab: export JUPYTER_DATA_DIR := $(CURDIR)/$(ENV)/share/jupyter
lab: $(ENV)/.ready-lab
	@$(if $(NOTEBOOKS),$(PY) -m nbformat.sign $(NOTEBOOKS) > /dev/null)
	$(ALL_THREADS) $(PY) -m jupyterlab --config=tools/jupyter_config.py --LabApp.news_url= \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate $(LAB)

test-adapters: $(ENV)/.ready-adapters
	$(PY) -m pytest --quiet -n $(JOBS) tests/adapters

# The Triton kernels without a GPU: in Triton's interpreter, then compiled for three generations of chips.
kernels: $(ENV)/.ready-gpu
	TRITON_INTERPRET=1 $(PY) -m pytest --quiet -n $(JOBS) --dist worksteal tests/torch/test_triton.py
	$(PY) benchmarks/compiled.py --jobs $(JOBS)

# What tells most, in three minutes.
kernels-slice: $(ENV)/.ready-gpu
	TRITON_INTERPRET=1 $(PY) -m pytest --quiet -n $(JOBS) --dist worksteal -m telling tests/torch/test_triton.py
	$(PY) benchmarks/compiled.py --slice --jobs $(JOBS)

accessible: $(ENV)/.ready-accessible $(DONE)/html
	$(PY) tools/accessible.py _build/html --jobs $(JOBS)

# Right code, mistakes and hostile candidates of people who had not read the checker: every second of them, or EVERY=1.
wild: EVERY := 2
wild: $(READY)
	$(PY) benchmarks/wild.py --jobs $(JOBS) --every $(EVERY)

mutants: $(ENV)/.ready-mutants
	$(PY) -m mutmut run
	$(PY) -m mutmut results

identities: $(READY)
	$(PY) tools/identities.py

exact-mutants: $(READY)
	$(PY) tools/exact_mutants.py --jobs $(JOBS)

clean:
	rm -rf _build build dist mutants .pytest_cache .ruff_cache .hypothesis attnmath.egg-info
	find attnmath tests tools chapters -name __pycache__ -type d -prune -exec rm -rf {} +
