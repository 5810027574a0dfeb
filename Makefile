# `make serve` and `make test` are all a fresh machine needs: each makes .venv, installs what it needs and fetches its
# models. A second run finds the stamps in .venv and starts at once.

PYTHON ?= python3
PORT   ?= 8080
ADDR   ?= 127.0.0.1:$(PORT)
# A safetensors directory or a .gguf file; empty is the demo model, which is fetched first.
MODEL  ?=
# Further flags for poot-serve, such as ARGS="--rows 8".
ARGS   ?=
# How long `make soak` loads the server, and, where it is given, `make fuzz` runs each harness.
SECONDS ?= 300

VENV  := .venv
BIN   := $(VENV)/bin
DEMO  := $(HOME)/.cache/poot/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
FETCH := $(BIN)/python scripts/fetch_models.py

# What an installation is made from: when one of these changes, the package is installed again and the native
# extension is built again. Python sources are not among them: the installation is editable.
INSTALL_SOURCES := pyproject.toml $(wildcard setup.py) $(shell find poot -name '*.c' -o -name '*.cpp' -o -name '*.h')
# On a terminal pip shows its progress (torch is large); in a log only what goes wrong.
QUIET := $(shell test -t 2 || echo --quiet)
PIP_INSTALL := $(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --no-input --prefer-binary

.PHONY: help serve test lint bench bench-embed bench-serve bench-wire soak fuzz clean
.DELETE_ON_ERROR:

help:
	@echo "make serve   install, fetch the demo model, serve it on $(ADDR)  (PORT, ADDR, MODEL, ARGS)"
	@echo "make test    install with the test extra, fetch the test models, run ruff, mypy and pytest"
	@echo "make bench   what benchmarks/decode.py measures on this machine"
	@echo "make bench-embed what benchmarks/embed.py measures, beside sentence-transformers"
	@echo "make bench-serve what benchmarks/serve.py measures: clients, prompts and arrivals of several kinds"
	@echo "make bench-wire  what benchmarks/wire.py measures, beside uvicorn and Hypercorn"
	@echo "make soak    load a server with clients that behave well and badly for SECONDS ($(SECONDS)), then look at it"
	@echo "make fuzz    run each harness of fuzz/ for SECONDS (30); see docs/fuzzing.md"
	@echo "make clean   remove .venv and everything built; fetched models stay in ~/.cache/poot"

serve: $(VENV)/.installed
ifeq ($(strip $(MODEL)),)
	@$(FETCH) smollm2
	@exec $(BIN)/poot-serve $(ARGS) "$(DEMO)" "$(ADDR)"
else
	@exec $(BIN)/poot-serve $(ARGS) "$(MODEL)" "$(ADDR)"
endif

test: lint
	$(FETCH) smollm2 minilm
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	@$(FETCH) smollm2
	$(BIN)/python benchmarks/decode.py "$(DEMO)"

bench-serve: $(VENV)/.installed
	@$(FETCH) smollm2
	$(BIN)/python benchmarks/serve.py "$(DEMO)"

# sentence-transformers comes with the test extra.
bench-embed: $(VENV)/.installed-test
	@$(FETCH) minilm
	$(BIN)/python benchmarks/embed.py "$(HOME)/.cache/poot/models/minilm"

# The peers have an environment of their own: they are compared with, not depended on.
bench-wire: $(VENV)/.installed $(VENV)/peers/.installed
	$(BIN)/python benchmarks/wire.py --peer-python $(VENV)/peers/bin/python

soak: $(VENV)/.installed-test
	$(BIN)/python -m tests.soak --seconds $(SECONDS)

fuzz: SECONDS := 30
fuzz: $(VENV)/.installed-fuzz
	@failed=; for name in $$($(BIN)/python -c 'import fuzz; print(*fuzz.HARNESSES)'); do \
	  echo "== $$name, $(SECONDS) seconds"; \
	  $(BIN)/python -m fuzz $$name -max_total_time=$(SECONDS) -verbosity=0 || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "broken:$$failed; the inputs are in .fuzz/"; exit 1; fi

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz
	find poot -name '*.so' -delete

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "poot needs Python 3.11 or newer; PYTHON=... names one")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(INSTALL_SOURCES) | $(VENV)/.created
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-test: $(INSTALL_SOURCES) | $(VENV)/.created
	$(PIP_INSTALL) --editable '.[test,asgi]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-fuzz: $(INSTALL_SOURCES) | $(VENV)/.created
	$(PIP_INSTALL) --editable '.[fuzz]'
	@touch $@ $(VENV)/.installed

$(VENV)/peers/.installed: | $(VENV)/.created
	$(PYTHON) -m venv $(VENV)/peers
	$(VENV)/peers/bin/python -m pip install $(QUIET) --disable-pip-version-check --no-input \
	  anyio starlette 'uvicorn[standard]' hypercorn uvloop
	@touch $@
