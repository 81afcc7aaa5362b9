# Each target sets up .venv by itself the first time. `make` alone lists the targets.
PYTHON ?= python3
# Which versions: constraints.txt, or another file of the same form.
CONSTRAINTS ?= constraints.txt
TORCH ?= $(or $(shell sed -n '/^torch==/p' $(CONSTRAINTS)),torch)
NAMES ?=
# Each setting is a run of `make portable`.
VARIANTS ?= ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=4 PYTHONHASHSEED=1
FLOATS := $(foreach name,attention decode loss model train twins,tests/test_$(name).py)
LESSONS ?=
RUN ?= runs/small
OUT ?=
# Of smoke-gpu and bench-gpu: where. Of the latter: which parts.
DEVICE ?= cuda
ONLY ?=

VENV := .venv
BIN := $(VENV)/bin
PIN := -c $(VENV)/constraints.txt
CPU_BUILD := --index-url https://download.pytorch.org/whl/cpu --retries 1 --timeout 10
SETUP := settings.ini setup.py pyproject.toml $(CONSTRAINTS)
SCRIPTS := $(wildcard annotated_transformer/show/pages/*.js) tests/page.js
MIN_PYTHON := $(shell sed -n 's/^min_python *= *//p' settings.ini)

# The commands of .venv come first for what notebooks and tests start; one thread, since two of them run at a time.
WITH := PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-slow portable lab export notebooks student docs zh-status links check bench-train bench-decode bench-gpu smoke-gpu pretrained clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1@/p' Makefile | awk -F@ '{ printf "  make %-12s %s\n", $$1, $$2 }'

demo: $(VENV)/.stamp-run  ## train on the built-in corpus, translate, draw the attention: runs/demo
	@$(BIN)/annotated-transformer demo

test: $(VENV)/.stamp-dev  ## all checks: what is exported and the README agree with the notebooks, every notebook (LESSONS=1: 1 to 7 alone) runs, pytest
	@printf '\n== 1 of 3: package, notebooks and README agree\n'
	@$(BIN)/python tools/gate.py
	@printf '\n== 2 of 3: every notebook runs\n'
	@$(WITH) $(BIN)/nbdev_test --n_workers 2 --timing $(if $(LESSONS),--file_re '^[1-7].*')
	@printf '\n== 3 of 3: tests/\n'
	@$(WITH) $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

test-slow: $(VENV)/.stamp-dev  ## the tests that take long and rarely break
	@$(WITH) $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder -m slow
	@$(WITH) $(BIN)/nbdev_test --n_workers 2 --timing --flags slow --file_re "^($$(basename -a $$(grep -l '"#| slow' nbs/*.ipynb) | paste -sd'|'))"

portable: $(VENV)/.stamp-dev  ## what computes with floats under other kernels, threads and orders of sets (VARIANTS="OMP_NUM_THREADS=4" for one)
	@failed=; for variant in $(VARIANTS); do printf '\n== %s\n' "$$variant"; \
	$(WITH) env $$variant nbdev_test --n_workers 2 --file_re '^(01|2|3|53|54_|61[a-d]|90)' && \
	$(WITH) env $$variant $(BIN)/python -m pytest -q $(FLOATS) || failed="$$failed $$variant"; done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

lab: $(VENV)/.stamp-dev  ## JupyterLab, at the home page, from which links lead to every notebook
	@$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/nbs/index.ipynb

export: $(VENV)/.stamp-dev  ## notebooks to package, notebooks cleaned, README.md made; runs nothing
	@$(WITH) $(BIN)/python tools/notebooks.py export

notebooks: $(VENV)/.stamp-dev  ## export, and run every notebook (or NAMES="31_stack …"), outputs stored
	@$(WITH) $(BIN)/python tools/notebooks.py run $(NAMES)

student: $(VENV)/.stamp-dev  ## the notebooks without solutions, for a class, in a new folder: OUT=DIR
	@[ -n "$(OUT)" ] || { echo 'name a new folder: make student OUT=DIR'; exit 1; }
	@$(BIN)/python tools/student.py "$(OUT)"

docs: $(VENV)/.stamp-docs export  ## the site: _docs, and what is translated of it: _docs/zh, _docs/zh-hant; an unexpected warning of Quarto's is an error
	@touch README.md
	@rm -rf _proc
	@$(WITH) $(BIN)/python tools/publish.py
	@$(BIN)/python tools/links.py _docs

zh-status: $(VENV)/.stamp-dev  ## what changed in the English of translated pages since they were translated, by page and text, word by word
	@$(BIN)/python tools/translate.py status

links: $(VENV)/.stamp-dev  ## do all links of notebooks, README.md and, if they were made, pages lead somewhere? those to other hosts are listed
	@$(BIN)/python tools/links.py $(wildcard _docs)

check: $(VENV)/.stamp-dev  ## lint, format and types; where node is there, the syntax of the scripts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@command -v node >/dev/null || { echo 'node is not on PATH: the scripts of the pages are not checked'; exit 0; }; \
	for script in $(SCRIPTS); do node --check $$script || exit 1; done

bench-train: $(VENV)/.stamp-bench  ## training speed beside torch.nn.Transformer and Hugging Face's Marian, in one interleaved run
	@$(BIN)/python benchmarks/train.py

bench-decode: $(VENV)/.stamp-bench  ## decoding speed of RUN (runs/small) beside Hugging Face's generate and CTranslate2, in one interleaved run
	@$(BIN)/python benchmarks/decode.py $(RUN)

smoke-gpu: $(VENV)/.stamp-run  ## first on a new GPU, two minutes: is what it computes right? ends at what is not (or DEVICE=cpu)
	@$(BIN)/python benchmarks/smoke.py --device $(DEVICE)

bench-gpu: $(VENV)/.stamp-bench  ## training, decoding, scaling and resuming on one to eight GPUs (or DEVICE=cpu to try it with tiny models, ONLY="train decode")
	@$(BIN)/python benchmarks/gpu.py --device $(DEVICE) $(if $(ONLY),--only $(ONLY))

pretrained: $(VENV)/.stamp-run  ## train the model that comes with the package again, and replace it
	@$(BIN)/python tools/pretrain.py

clean:  ## remove .venv and all that was built; runs/ stays
	rm -rf $(VENV) _proc _docs build dist *.egg-info nbs/nbdev.yml .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.stamp-python:
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: install Python $(MIN_PYTHON) or newer, or name yours: make $(MAKECMDGOALS) PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(MIN_PYTHON)".split("."))))' \
	|| { echo "`$(PYTHON) --version` is too old: Python $(MIN_PYTHON) or newer is needed, name yours: make $(MAKECMDGOALS) PYTHON=…"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# torch first and alone, so that TORCH="…" may name any build of it; all else at the versions of constraints.txt.
# On Linux, PyPI's has CUDA: without a GPU (or one of AMD, or of Windows below), the build for CPUs comes first.
$(VENV)/.stamp-torch: $(VENV)/.stamp-python
	@echo 'setting up $(VENV), once: $(TORCH)'
	@if [ '$(origin TORCH)' = file ] && [ `uname -s` = Linux ] && ! ls /dev/nvidia0 /dev/kfd /dev/dxg >/dev/null 2>&1; then \
	  $(BIN)/pip install --quiet --no-deps $(CPU_BUILD) '$(TORCH)' >$(VENV)/torch.log 2>&1 && touch $@ || \
	  echo 'the build for CPUs cannot be had here ($(VENV)/torch.log): PyPI'\''s comes, with CUDA about 3 GB; make $(MAKECMDGOALS) TORCH="…" names another'; fi
	@[ -e $@ ] || printf '%s\n' '$(TORCH)' | xargs $(BIN)/pip install --quiet --no-deps
	@touch $@

$(VENV)/.stamp-run: $(VENV)/.stamp-torch $(SETUP)
	@echo 'setting up $(VENV), once: the packages of settings.ini'
	@sed '/^torch==/d' $(CONSTRAINTS) > $(VENV)/constraints.txt
	@$(BIN)/pip install --quiet $(PIN) -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run
	@echo 'setting up $(VENV), once: the tools for notebooks and tests'
	@$(BIN)/pip install --quiet $(PIN) -e '.[dev]'
	@$(BIN)/python tools/notebooks.py setup
	@touch $@

# The peers; JoeyNMT, which asks for other versions of much, is not among them.
$(VENV)/.stamp-bench: $(VENV)/.stamp-run
	@$(BIN)/pip install --quiet $(PIN) -e '.[bench]'
	@touch $@

# quarto-cli fetches Quarto itself when it is installed.
$(VENV)/.stamp-docs: $(VENV)/.stamp-dev
	@$(BIN)/pip install --quiet $(PIN) opencc
	@$(WITH) command -v quarto >/dev/null || $(BIN)/pip install --quiet $(PIN) -e '.[docs]' >$(VENV)/quarto.log 2>&1 || true
	@$(WITH) quarto --version >/dev/null 2>&1 || { echo "Quarto cannot be had here (see $(VENV)/quarto.log): make lab shows the notebooks without it"; exit 1; }
	@touch $@
