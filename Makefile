# `make demo` shows fusec at work, `make test` checks everything; both make the environment first.
# `make help` lists the rest. PYTHON=... chooses the interpreter, PYTEST_ARGS=... is passed to pytest.

VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# torch goes in first and alone: its build (CPU or CUDA) decides what else is needed. A CUDA build
# brings the one Triton that it works with; for a CPU build this one was tested.
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
TRITON := triton==3.9.0

FORMULA := 0.5*x*(1+tanh(0.79788456*(x+0.044715*x^3)))

.PHONY: help demo test lint types format docs bench clean

help:
	@echo 'make demo     show the GELU kernel and race it against PyTorch'
	@echo 'make test     lint, types and the whole test suite'
	@echo 'make lint     ruff check and ruff format --check'
	@echo 'make types    mypy --strict'
	@echo 'make format   let ruff mend and format the code'
	@echo 'make docs     regenerate docs/ops.md'
	@echo 'make bench    run the benchmark suites and render their tables'
	@echo 'make clean    remove the environment and all caches of the tools'

demo: $(VENV)/.installed
	$(BIN)/fusec show '$(FORMULA)'
	@size=$$($(BIN)/python -c 'import torch; print(16384 if torch.cuda.is_available() else 4096)'); \
	echo; echo 'The race; torch.compile takes up to a minute to start.'; \
	set -x; $(BIN)/fusec bench '$(FORMULA)' -i "x=$${size}x$${size}:f32"
	@echo "'. $(VENV)/bin/activate' puts fusec and its Python on the PATH of this shell."

# Two workers: on two cores that is the fastest, and more only pays where compilers do not. Tests start
# hundreds of processes: what is compiled of Python is kept for the next, whatever the environment says.
PYTEST_WORKERS ?= 2
test: lint types
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) $(PYTEST_ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.installed-test
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed
	$(BIN)/fusec ops --markdown > docs/ops.md.new
	mv docs/ops.md.new docs/ops.md

bench: $(VENV)/.installed-bench
	$(BIN)/fusec bench --overwrite --suite pipeline --suite host --suite cold --suite cpu --suite gradients
	! $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || \
	$(BIN)/fusec bench --overwrite --suite pointwise --suite rows
	$(BIN)/python -m benchmarks.render README.md docs/benchmarks.md

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find fusec tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# ---- the environment: each stamp is remade when a file that it depends on is newer ----

# The first interpreter that works, since a version manager's stand-ins exist and fail.
PYTHON_FITS := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))
FIND_PYTHON = for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10); do \
	if "$$python" -c '$(PYTHON_FITS)' >/dev/null 2>&1; then echo "$$python"; exit 0; fi; done; \
	echo 'fusec needs Python 3.10 to 3.14 with its venv module (on Debian: apt-get install' \
	'python3-venv); PYTHON=/path/to/python chooses one.' >&2; exit 1

$(VENV)/.torch: constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { python=$$($(FIND_PYTHON)) && \
	echo "[1/3] environment $(VENV) from $$python" && "$$python" -m venv $(VENV); }
	@echo '[2/3] $(TORCH)'
	@$(PIP) install $(if $(CI),-qq) $(TORCH)
	@[ "$$(uname)" != Linux ] || $(PIP) show -q triton 2>/dev/null || \
	{ echo '      $(TRITON)'; $(PIP) install -qq $(TRITON); }
	@touch $@

$(VENV)/.installed: EXTRAS :=
$(VENV)/.installed-test: EXTRAS := [test]
$(VENV)/.installed-bench: EXTRAS := [bench]
$(VENV)/.installed $(VENV)/.installed-test $(VENV)/.installed-bench: $(VENV)/.torch pyproject.toml constraints.txt
	@echo '[3/3] fusec$(EXTRAS) and what it depends on'
	@$(PIP) install -qq -c constraints.txt -e '.$(EXTRAS)'
	@touch $@
