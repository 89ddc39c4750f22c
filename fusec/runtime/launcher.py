"""The compiled launcher: builds it, loads it, and makes its plans.

A small extension module (``launcher_sources``) takes over the calls that were made ready before.
No first call waits for it: it is loaded when a call is repeated, and where it is not in the cache
yet a compiler makes it meanwhile, at low priority, once calls are repeated often or bound. Without
a compiler, or Python's headers, every call goes through Python. May import ``forks``,
``settings``, ``runtime.cache``, ``runtime.prepared``, ``runtime.launcher_torch``,
``runtime.launcher_steps``, ``runtime.build_cpp`` and ``runtime.libcuda``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusec import forks, settings
from fusec.runtime.cache import Entry, default_store, digest
from fusec.runtime.launcher_steps import cpp_step, cuda_step

if TYPE_CHECKING:
    import torch

    from fusec.runtime import launcher_torch
    from fusec.runtime.build_cpp import Compiler
    from fusec.runtime.prepared import Prepared, StepPlan

SOURCES = Path(__file__).parent / "launcher_sources"
LOAD_AFTER, BUILD_AFTER = 2, 64  # repeated calls
_NAME = "fusec_launcher"
_LIBRARY = "launcher.so"
_FAILURE = "failure.txt"
_NICENESS = 10
_TIMEOUT = 120.0  # seconds
_FLAGS = (
    "-O2", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden",
    # Python's own functions are found in the process that loads the module.
    *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()),
)  # fmt: skip
_MOST_SLOTS, _MOST_INPUTS = 64, 32  # MOST of plan.h


class _State:
    """What this process knows of the launcher."""

    def __init__(self) -> None:
        self.module: Any = None
        self.reason = "no call has been repeated yet"
        self.over = False  # there is a module, or there will be none
        self.repeated = 0
        self.build: _Build | None = None
        self.ways: launcher_torch.Ways | None = None
        self.allocations: dict[torch.device, launcher_torch.Allocate | None] = {}
        self.cuda_ready = False
        self.cuda_tried = False  # to read tensors of a GPU by short ways
        self.lock = forks.lock()


_state = _State()


def note_repeated() -> Any:
    """Count a call that Python made again; the extension module when it can be used.

    Not under a mode of torch, as the one that watches the first run of a compiled model: what is
    found out of torch then is not what holds without.
    """
    state = _state
    if _in_mode():
        return None
    if state.over:
        return state.module
    state.repeated += 1
    if state.repeated == LOAD_AFTER:
        _load()
    elif state.repeated >= BUILD_AFTER:
        request()
    return state.module


def request() -> Any:
    """Ask for the launcher: load it if it is built, else have it built meanwhile."""
    state = _state
    with state.lock:
        build = state.build
        waiting = build is not None and build.is_alive()
    if state.over or waiting or _in_mode():
        return state.module
    _load()
    if not state.over:
        _start()
    return state.module


def wait(seconds: float) -> bool:
    """Ask for the launcher and wait until it can be used; False when it can't."""
    request()
    build = _state.build
    if not _state.over and build is not None:
        build.join(seconds)
        _load()
    return _state.module is not None


def reason() -> str:
    """Why there is no launcher."""
    return _state.reason


def plan_of(prepared: Prepared, inputs: int, given: bool = False) -> Any:
    """The plan in C of a call that was made ready; None where it has to stay in Python.

    ``given``: the caller brings the outputs.
    """
    if prepared.fast is None and _state.module is not None:
        prepared.fast = _plan(prepared, inputs, given) or False
    return prepared.fast or None


def region(
    plan: Any, tensors: tuple[Any, ...], inputs: tuple[Any, ...], makes: Iterable[Any],
    outputs: tuple[Any, ...], results: tuple[Any, ...],
) -> Any:  # fmt: skip
    """A call of a plan with tensors laid out like these, as ``launcher_sources/region.h`` says;
    ``makes`` are functions that make tensors. None where it has to stay in Python.
    """
    makers = tuple(map(_maker, makes))
    try:
        return _state.module.Region(plan, tensors, inputs, makers, outputs, results)
    except ValueError:
        return None


# -- plans ----------------------------------------------------------------------------------------


def _plan(prepared: Prepared, inputs: int, given: bool) -> Any:
    plan = prepared.plan
    if plan is None or prepared.reference or prepared.tensors:
        return None
    buffers = inputs + len(plan.outputs) + len(plan.temporaries)
    slots = max(len(step.types) for step in plan.steps) + 1
    if inputs > _MOST_INPUTS or max(buffers, slots) > _MOST_SLOTS:
        return None
    makers = (
        *(None if given else _maker(make) for make in prepared.make_outputs),
        *map(_maker, prepared.make_temporaries),
    )
    steps = tuple(
        cpp_step(step, ready.template[-1]) if step.backend == "cpp"
        else _cuda_step(step, prepared.device)
        for step, ready in zip(plan.steps, prepared.steps, strict=True)
    )  # fmt: skip
    return _state.module.Plan(inputs, len(plan.outputs), makers, steps, prepared.steps)


def _maker(make: Any) -> Any:
    """A tensor to make others like, which has no memory of its own; or the function itself."""
    import torch

    if getattr(make, "func", None) is not torch.empty_strided:
        return make
    from fusec.runtime import launcher_torch

    like = make()
    like.untyped_storage().resize_(0)
    allocations = _state.allocations
    if like.device not in allocations:
        allocations[like.device] = launcher_torch.allocation(like.device)
    allocate = allocations[like.device]
    if allocate is None or _state.ways is None:
        return like
    return allocate, (tuple(like.shape), like.stride(), like.dtype), like


def _cuda_step(step: StepPlan, device: torch.device) -> tuple[object, ...]:
    import torch

    from fusec.runtime.libcuda import cuda_driver

    driver, index = cuda_driver(), device.index or 0
    if not _state.cuda_ready:
        _state.module.setup_cuda(
            torch._C._cuda_getCurrentRawStream, *driver.addresses(), driver.device_count > 1
        )
        _state.cuda_ready = True
    _find_cuda_ways(index)
    return cuda_step(step, index)


def _find_cuda_ways(index: int) -> None:
    """Prove the short ways for tensors of a GPU, once; not while a graph is captured, which forbids
    to try them, and must not leave all later calls to Python.
    """
    import torch

    from fusec.runtime import launcher_torch

    if _state.ways is None or _state.cuda_tried or torch.cuda.is_current_stream_capturing():
        return
    _state.cuda_tried = True
    _state.ways = launcher_torch.with_cuda(_state.ways, index)
    _state.module.setup_tensors(*_state.ways)


# -- building and loading -------------------------------------------------------------------------


def _key(compiler: Compiler) -> str:
    parts: dict[str, str | bytes] = {
        "kind": "launcher",
        "compiler": "\0".join((*compiler.command, compiler.path, compiler.version)),
        "flags": "\0".join((*_FLAGS, *settings.get().cxxflags)),
        "python": f"{sys.version} {sysconfig.get_config_var('SOABI')} {_headers()}",
    }
    for path in sorted(SOURCES.iterdir()):
        parts[f"source {path.name}"] = path.read_bytes()
    return digest(parts)


def _headers() -> str:
    return sysconfig.get_paths()["include"]


def _give_up(why: str) -> None:
    _state.reason, _state.over = why, True


def _in_mode() -> bool:
    import torch

    function, dispatch = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
    return bool(function() or dispatch())


def _load() -> None:
    """Load the extension module if it is in the cache, and no mode of torch is on."""
    with _state.lock:
        if _state.over or _in_mode():
            return
        obstacle, key = _obstacle()
        entry = None if obstacle else default_store().get(key)
        if obstacle:
            _give_up(obstacle)
        elif entry is None:
            _state.reason = "it is not built yet"
        else:
            _use(entry)


def _use(entry: Entry) -> None:
    try:
        _state.module = _import(entry)
    except (ImportError, OSError) as error:
        return _give_up(f"it cannot be loaded: {error}")
    return _give_up("")


def _obstacle() -> tuple[str, str]:
    """What stands in the way of a launcher, or else nothing and its key in the cache."""
    from fusec.runtime.build_cpp import find_compiler

    if settings.get().no_launcher:
        return "FUSEC_NO_LAUNCHER is set", ""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no global interpreter lock", ""
    compiler = find_compiler()
    if compiler is None or not Path(_headers(), "Python.h").exists():
        return "there is no C++ compiler, or no headers of Python", ""
    key = _key(compiler)
    failed = default_store().get(digest({"failed": key}))
    if failed is not None:
        said = failed.files[_FAILURE].decode(errors="replace")[:2000]
        return f"it could not be built: {said}", key
    return "", key


def _import(entry: Entry) -> Any:
    import torch

    from fusec.runtime import launcher_torch
    from fusec.runtime.arguments import plain_types
    from fusec.runtime.build_cpp import may_use_threads

    path = entry.path(_LIBRARY)
    if path is None:
        raise OSError("the cache has no directory")
    loader = ExtensionFileLoader(_NAME, str(path))
    spec = spec_from_loader(_NAME, loader)
    assert spec is not None
    module: Any = module_from_spec(spec)
    loader.exec_module(module)
    module.setup(
        tuple(plain_types()), torch.strided, torch.empty_like, torch.is_grad_enabled,
        torch._C._get_tracing_state,
    )  # fmt: skip
    if not may_use_threads():
        module.one_thread()
    _state.ways = launcher_torch.ways()
    if _state.ways is not None:
        module.setup_tensors(*_state.ways)
    return module


class _Build(threading.Thread):
    """A compiler at work on the launcher, at low priority."""

    def __init__(self, compiler: Compiler, key: str) -> None:
        super().__init__(name="fusec-launcher", daemon=True)
        self._compiler = compiler
        self._key = key
        self._flags = settings.get().cxxflags
        self._store = default_store()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self) -> None:
        """Compile, and keep the library, or why there is none."""
        with contextlib.suppress(OSError), self._store.scratch() as directory:
            library = directory / _LIBRARY
            code, said = self._compile(library)
            if code == 0:
                self._store.put(self._key, {_LIBRARY: library.read_bytes()})
            elif code > 0:  # not killed: it would fail again
                self._store.put(digest({"failed": self._key}), {_FAILURE: said})

    def stop(self) -> None:
        """End the compiler, when the process ends."""
        self._stopped = True
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        if threading.current_thread() is not self:
            self.join(2.0)

    def _compile(self, library: Path) -> tuple[int, bytes]:
        compiler = self._compiler
        with subprocess.Popen(
            [
                compiler.path, *compiler.command[1:], *_FLAGS, *self._flags,
                f"-I{_headers()}", str(SOURCES / "launcher.cpp"), "-o", str(library),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:  # fmt: skip
            self._process = process
            with contextlib.suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PGRP, process.pid, _NICENESS)
            if self._stopped:
                self.stop()
            try:
                said, _ = process.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return -1, b""
            return process.returncode, said


def _start() -> None:
    """Start a build, unless one has run: what it made is in the cache, or nothing will be."""
    from fusec.runtime.build_cpp import find_compiler

    state = _state
    with state.lock:
        compiler = find_compiler()
        if state.over or compiler is None or (state.build and state.build.is_alive()):
            return
        if state.build is not None:
            _give_up("its build left nothing in the cache")
            return
        state.reason = "it is being built"
        state.build = _Build(compiler, _key(compiler))
        state.build.start()
        atexit.register(state.build.stop)


def _after_fork() -> None:
    if not _state.over:  # the parent's build goes on there
        _state.build, _state.repeated = None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
