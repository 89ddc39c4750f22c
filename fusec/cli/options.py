"""What the commands share: the formula, ``-i NAME=SHAPE[:DTYPE]``, choices with suggestions.

May import every layer below; torch only inside the functions that make tensors.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fusec.errors import (
    DTypeError,
    FusecError,
    ParseError,
    ShapeError,
    UnknownNameError,
    UnsupportedError,
    did_you_mean,
)
from fusec.source import Source, Span

if TYPE_CHECKING:
    import torch

Number: TypeAlias = "int | float | bool"
Value: TypeAlias = "torch.Tensor | int | float | bool"

BACKENDS = ("auto", "triton", "cpp", "cuda", "torch")
DEVICES = ("cpu", "cuda")
NUMERICS = ("torch", "precise", "fast")
DEFAULT_SIZE = 4096
# How a tensor lies in memory: axes from the slowest to the fastest, by rank.
LAYOUTS: dict[str, dict[int, tuple[int, ...]]] = {
    "transposed": {2: (1, 0), 3: (0, 2, 1), 4: (0, 1, 3, 2)},
    "channels_last": {4: (0, 2, 3, 1)},
}
INPUT_HELP = (
    "An input: x=8192x4096:bf16 (a tensor; float32 without a type), b=4096, s= (a 0-d tensor), "
    "x=64x48:f32:transposed (or channels_last: how it lies in memory), eps=1e-5 (a Python number: "
    "it has a point or an exponent), n=3:number, flag=true. Repeatable."
)
FORMULA_HELP = "A formula, a file that holds one (*.fuse), or - for standard input."

_EXTENT = re.compile(r"[0-9]+")
_LONGEST_PATH = 1024  # characters; a longer argument is a formula
_LARGEST_EXTENT = 1 << 48
_NUMBER_WORDS = {"true": True, "false": False}

# One word with a slash in front or a file ending behind: a path, or a slip that looks like one.
_FILE_LIKE = re.compile(r"\s*(?:\.{0,2}/\S+|\S+\.[A-Za-z]{2,5})\s*")


@dataclass(frozen=True)
class InputOption:
    """One ``-i``: a tensor (``shape`` and ``dtype``, a name of torch) or a Python number.

    ``layout`` is a key of LAYOUTS, or empty for rows one behind the other.
    """

    name: str
    shape: tuple[int, ...] = (DEFAULT_SIZE, DEFAULT_SIZE)
    dtype: str = "float32"
    number: Number | None = None
    layout: str = ""

    @property
    def is_number(self) -> bool:
        return self.number is not None

    def __str__(self) -> str:
        """The option as it could be typed."""
        if self.number is None:
            layout = f":{self.layout}" if self.layout else ""
            return f"{self.name}={'x'.join(map(str, self.shape))}:{self.dtype}{layout}"
        if isinstance(self.number, bool):
            return f"{self.name}={str(self.number).lower()}"
        suffix = ":number" if isinstance(self.number, int) else ""
        return f"{self.name}={self.number!r}{suffix}"


def read_formula(argument: str) -> Source:
    """The formula that an argument of the command line means, with the name errors show for it."""
    if argument == "-":
        return Source(sys.stdin.read().removeprefix("\ufeff"), "<stdin>")
    if not argument.endswith(".fuse") and not _is_file(argument):
        return Source(argument)
    try:
        return Source(Path(argument).read_text(encoding="utf-8-sig"), argument)
    except UnicodeDecodeError as error:
        raise ParseError(f"{argument} is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ParseError(
            f"cannot read {argument}: {reason.lower()}",
            hint="an argument that ends in .fuse names a file",
        ) from error


@contextlib.contextmanager
def blamed_on(source: Source) -> Iterator[None]:
    """Errors in the formula carry the name of the file that it came from."""
    try:
        yield
    except FusecError as error:
        if isinstance(error, ParseError) and _FILE_LIKE.fullmatch(source.text):
            hint = f"there is no file {source.text}, so it was read as a formula"
            error.diagnostic = replace(error.diagnostic, hint=hint)
        shown = error.diagnostic.source
        if shown is not None and shown.text == source.text:
            error.diagnostic = replace(error.diagnostic, source=source)
        raise


def parse_inputs(arguments: Sequence[str]) -> dict[str, InputOption]:
    """Every ``-i``, by name. Raises ParseError, ShapeError or DTypeError with a caret."""
    options: dict[str, InputOption] = {}
    for argument in arguments:
        option = parse_input(argument)
        if option.name in options:
            raise ParseError(
                f"the input '{option.name}' is given twice",
                source=_source(argument),
                span=Span(0, len(option.name)),
            )
        options[option.name] = option
    return options


def parse_input(argument: str) -> InputOption:
    """``NAME=SHAPE[:DTYPE[:LAYOUT]]`` or ``NAME=NUMBER[:number]``."""
    name, equals, value = argument.partition("=")
    name = name.strip()
    if not equals or not name.isidentifier():
        raise ParseError(
            "an input is written NAME=SHAPE[:DTYPE]",
            source=_source(argument),
            span=Span(0, len(argument.partition("=")[0])),
            hint="for example -i x=8192x4096:bf16",
        )
    start = argument.index("=") + 1
    text, colon, kind = value.partition(":")
    if kind.strip() == "number" or (not colon and _looks_like_number(text)):
        return InputOption(name, (), number=_number(argument, text, start))
    option = InputOption(name, _shape(argument, text, start))
    if not colon:
        return option
    kind, colon, layout = kind.partition(":")
    start += len(text) + 1
    option = replace(option, dtype=_dtype(argument, kind, start))
    if not colon:
        return option
    return _laid_out(option, argument, layout, start + len(kind) + 1)


def complete(
    options: dict[str, InputOption], names: Iterable[str], size: int = DEFAULT_SIZE
) -> list[InputOption]:
    """One option for each input of a formula, in its order.

    An input without an ``-i`` is like the first tensor that has one, or a float32 matrix of
    ``size`` x ``size``. Raises UnknownNameError for an ``-i`` that the formula has no use for.
    """
    wanted = list(names)
    for name in options:
        if name not in wanted:
            known = ", ".join(wanted) or "none"
            raise UnknownNameError(
                f"the formula has no input '{name}' (its inputs: {known})",
                hint=did_you_mean(name, wanted),
            )
    first = next((option for option in options.values() if not option.is_number), None)
    template = first or InputOption("", (size, size))
    return [options.get(name) or replace(template, name=name) for name in wanted]


def choose(value: str, choices: Sequence[str], option: str) -> str:
    """``value`` if it is one of ``choices``; otherwise UnknownNameError with the nearest one."""
    if value in choices:
        return value
    raise UnknownNameError(
        f"{option} cannot be '{value}' (one of {', '.join(choices)})",
        hint=did_you_mean(value, choices),
    )


def choose_device(device: str | None) -> str:
    """``cpu`` or ``cuda``; UnsupportedError for cuda without one."""
    import torch

    if device is not None:
        choose(device, DEVICES, "--device")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise UnsupportedError(
            "there is no CUDA device here", hint="fusec doctor says what there is"
        )
    return device or ("cuda" if available else "cpu")


def example_values(options: Sequence[InputOption], device: str = "meta") -> list[Value]:
    """Values of the right types with unspecified contents; on ``meta`` they take no memory."""
    import torch

    return [
        option.number
        if option.number is not None
        else torch.empty(option.shape, dtype=getattr(torch, option.dtype), device=device)
        for option in options
    ]


def _is_file(argument: str) -> bool:
    if len(argument) > _LONGEST_PATH or "\n" in argument:
        return False
    try:
        return Path(argument).is_file()
    except (OSError, ValueError):  # not a possible name of a file
        return False


def _looks_like_number(text: str) -> bool:
    text = text.strip().lower()
    if text in _NUMBER_WORDS:
        return True
    if not text or _EXTENT.fullmatch(text):
        return False
    return _as_float(text) is not None


def _as_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _number(argument: str, text: str, start: int) -> Number:
    word = text.strip().lower()
    if word in _NUMBER_WORDS:
        return _NUMBER_WORDS[word]
    if re.fullmatch(r"[+-]?[0-9]+", word):
        return int(word)
    value = _as_float(word)
    if value is None:
        raise _at(ParseError, f"'{text}' is not a number", argument, start, text)
    return value


def _shape(argument: str, text: str, start: int) -> tuple[int, ...]:
    if text.strip() in ("", "()"):
        return ()
    extents = []
    for piece in text.split("x"):
        if not _EXTENT.fullmatch(piece) or len(piece) > 15 or int(piece) > _LARGEST_EXTENT:
            what = f"'{piece}' is not a length" if piece else "a length is missing"
            hint = "lengths are joined by 'x', as in 8192x4096"
            raise _at(ShapeError, what, argument, start, piece, hint)
        extents.append(int(piece))
        start += len(piece) + 1
    return tuple(extents)


def _dtype(argument: str, text: str, start: int) -> str:
    from fusec.ir.dtypes import ALIASES

    found = ALIASES.get(text.strip())
    if found is not None:
        return found.torch
    names = [*ALIASES, "number"]
    message = f"there is no type '{text}'" if text else "a type is missing"
    hint = did_you_mean(text, names) or "types are f32 f16 bf16 f64 f8e4m3 f8e5m2 i8 to i64 u8 bool"
    raise _at(DTypeError, message, argument, start, text, hint)


def _laid_out(option: InputOption, argument: str, layout: str, start: int) -> InputOption:
    ranks = LAYOUTS.get(layout)
    if ranks is None:
        hint = did_you_mean(layout, LAYOUTS) or f"one of {', '.join(LAYOUTS)}"
        raise _at(ShapeError, f"there is no layout '{layout}'", argument, start, layout, hint)
    if len(option.shape) not in ranks:
        needed = " to ".join(map(str, sorted({min(ranks), max(ranks)})))
        message = f"{layout} needs {needed} dimensions, the shape has {len(option.shape)}"
        raise _at(ShapeError, message, argument, start, layout)
    return replace(option, layout=layout)


def _source(argument: str) -> Source:
    return Source(argument, "-i")


def _at(
    kind: type[FusecError],
    message: str,
    argument: str,
    start: int,
    text: str,
    hint: str | None = None,
) -> FusecError:
    span = Span(start, start + len(text))
    return kind(message, source=_source(argument), span=span, hint=hint)
