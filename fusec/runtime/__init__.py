"""From source text to a running kernel: cache, compilers, launchers, measuring.

May import every layer below: source, settings, errors, ir, passes, frontend, codegen. Nothing here
imports torch, triton or numpy at import time, but for the `interpret_*` modules, which are the
program of the helper process that `interpret` starts.
"""
