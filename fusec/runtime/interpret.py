"""Runs generated Triton on CPU tensors, in Triton's interpreter. May import build_triton,
messages, errors.

The interpreter must be chosen before triton is imported, so it lives in a helper process: started
at the first call, used by all threads in turn, replaced when it dies. Tensors travel through a file
that both processes map.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusec import forks, settings
from fusec.errors import BuildError, InternalError, UnsupportedError
from fusec.runtime.build_triton import TritonProgram
from fusec.runtime.messages import receive, send

if TYPE_CHECKING:
    import torch

_GUARD = 4096  # bytes around each stretch of memory that a kernel must leave alone
_GUARD_BYTE = 0xA5
_ALIGNMENT = 256  # bytes: addresses keep their remainder by this
_SHARED_MEMORY = Path("/dev/shm")


def run_interpreted(
    program: TritonProgram,
    grid: tuple[int, int, int],
    arguments: Sequence[torch.Tensor | int | float],
) -> None:
    """Run `program` over `grid` and leave what it wrote in the CPU tensors among `arguments`.

    The arguments are those of a launch: the signature's order, without constants. Tensors may have
    any strides and share storage. Raises BuildError with the interpreter's message when the kernel
    fails, InternalError when it writes outside its tensors, UnsupportedError without Triton.
    """
    kinds = program.parameter_types()
    if len(kinds) != len(arguments):
        raise InternalError(f"{program.entry} takes {len(kinds)} arguments, got {len(arguments)}")
    if 0 in grid:
        return
    spans = _spans(arguments)
    with _arena(spans) as (name, memory):
        request = {
            "source": program.source,
            "entry": program.entry,
            "signature": program.signature,
            "constants": program.constants,
            "grid": grid,
            "arena": name,
            "arguments": [_passed(argument, spans) for argument in arguments],
        }
        reply = _ask(request)
        if "error" in reply:
            raise BuildError(
                f"{program.entry} failed in Triton's interpreter", tool_output=reply["error"]
            )
        _bring_back(program.entry, spans, memory)


@dataclass
class _Span:
    """A stretch of this process's memory, and its place in the mapped file."""

    start: int
    end: int
    offset: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start


def _spans(arguments: Sequence[torch.Tensor | int | float]) -> list[_Span]:
    """The memory that the tensors cover, in order; tensors that overlap share a span."""
    covered = sorted(_extent(one) for one in arguments if not isinstance(one, (int, float)))
    spans: list[_Span] = []
    for start, end in covered:
        if spans and start < spans[-1].end:
            spans[-1].end = max(spans[-1].end, end)
        else:
            spans.append(_Span(start, end))
    position = 0
    for span in spans:
        position += _GUARD
        position += (span.start - position) % _ALIGNMENT
        span.offset = position
        position += span.size
    return spans


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"the interpreter runs on CPU tensors, not on {tensor.device}")
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    shape = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in shape)
    return start, start + (last + 1) * tensor.element_size()


def _passed(argument: torch.Tensor | int | float, spans: Sequence[_Span]) -> int | float:
    """A number itself; for a tensor, where it begins in the mapped file."""
    if isinstance(argument, (int, float)):
        return argument
    address = argument.data_ptr()
    span = next(span for span in reversed(spans) if span.start <= address)
    return span.offset + address - span.start


@contextlib.contextmanager
def _arena(spans: Sequence[_Span]) -> Iterator[tuple[str, mmap.mmap]]:
    """A mapped file that holds a copy of the spans, with guards between them."""
    size = (spans[-1].offset + spans[-1].size if spans else 0) + _GUARD
    descriptor, name = _reserved_file(size)
    try:
        with mmap.mmap(descriptor, size) as memory:
            end = 0
            for span in [*spans, _Span(0, 0, size)]:
                memory[end : span.offset] = bytes([_GUARD_BYTE]) * (span.offset - end)
                memory[span.offset : span.offset + span.size] = _bytes_at(span)
                end = span.offset + span.size
            yield name, memory
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(name)


def _reserved_file(size: int) -> tuple[int, str]:
    """A file whose space is taken already: a write to its mapping must not find a full disk."""
    error: OSError | None = None
    for folder in (_SHARED_MEMORY, None):
        try:
            descriptor, name = tempfile.mkstemp(prefix="fusec-", dir=folder)
        except OSError as failure:
            error = failure
            continue
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.ftruncate(descriptor, size)
            return descriptor, name
        except OSError as failure:
            error = failure
            os.close(descriptor)
            os.unlink(name)
    raise UnsupportedError(f"no room for {size} bytes to interpret a kernel in: {error}")


def _bytes_at(span: _Span) -> bytes:
    return ctypes.string_at(span.start, span.size) if span.size else b""


def _bring_back(entry: str, spans: Sequence[_Span], memory: mmap.mmap) -> None:
    end = 0
    for span in [*spans, _Span(0, 0, len(memory))]:
        if memory[end : span.offset].strip(bytes([_GUARD_BYTE])):
            raise InternalError(f"{entry} wrote outside of its tensors")
        end = span.offset + span.size
    for span in spans:
        after = memory[span.offset : span.offset + span.size]
        if after != _bytes_at(span):  # memory that was only read may be read-only
            ctypes.memmove(span.start, after, span.size)


class _Helper:
    """The helper process; `ask` is called by one thread at a time."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        code = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from fusec.runtime.interpret_worker import main; main()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # One thread for numpy's libraries: the arrays are small, and threads cost a start.
            env=settings.child_environment(TRITON_INTERPRET="1", OPENBLAS_NUM_THREADS="1"),
            start_new_session=True,  # Ctrl-C in a terminal is for us, who then end the helper
        )
        try:
            greeting = self._receive()
        except BaseException:
            self.stop()
            raise
        if "failed" in greeting:
            self.stop()
            raise UnsupportedError(
                f"Triton's interpreter does not start: {greeting['failed']}",
                hint="it needs Triton and numpy: pip install 'triton>=3.4' numpy",
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, request)  # type: ignore[arg-type]
        except BrokenPipeError:
            raise self._death() from None
        return self._receive()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        reply = receive(self._process.stdout)  # type: ignore[arg-type]
        if reply is None:
            raise self._death()
        return reply

    def _death(self) -> InternalError:
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return InternalError(f"the process that interprets kernels died ({how})")


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    global _helper
    with _lock:
        if _helper is not None and not _helper.alive:
            _helper.stop()
            _helper = None
        if _helper is None:
            _helper = _Helper()
        try:
            return _helper.ask(request)
        except BaseException:  # it died, or Ctrl-C left a reply on its way: start afresh next time
            _helper.stop()
            _helper = None
            raise


def _stop_at_exit() -> None:
    if _helper is not None:
        _helper.stop()


def _forget_after_fork() -> None:
    # The helper and its pipes belong to the parent.
    global _helper
    _helper = None


_lock = forks.lock()
_helper: _Helper | None = None
atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
