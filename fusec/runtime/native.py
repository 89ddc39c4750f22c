"""PyTorch's own function for a formula, where one call computes the same. Imports torch only.

What a formula computes is told by its numbers, not by its text: a candidate is taken when it agrees
with the formula in float64 on samples that reach the tails and the small rows, so it is found
however the formula is written, rounded constants included.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_TOLERANCE = 1e-6  # relative; the constants of a formula are often written with eight digits
_EPSILONS = ("1e-05", "1e-06", "1e-12", "1e-08", "0.0")
_LARGEST_SAMPLE = 24  # length of an axis of the samples

# Calls with {0} {1} {2} for tensor inputs and {eps} for each of the usual constants.
_F = "torch.nn.functional"
_ROW = "{0}.shape[-1:]"
CANDIDATES: tuple[str, ...] = (
    f'{_F}.gelu({{0}}, approximate="tanh")',
    f"{_F}.gelu({{0}})",
    f"{_F}.silu({{0}})",
    f"{_F}.relu({{0}})",
    f"{_F}.relu6({{0}})",
    f"{_F}.softplus({{0}})",
    f"{_F}.mish({{0}})",
    f"{_F}.elu({{0}})",
    f"{_F}.selu({{0}})",
    f"{_F}.celu({{0}})",
    f"{_F}.hardswish({{0}})",
    f"{_F}.hardsigmoid({{0}})",
    f"{_F}.hardtanh({{0}})",
    f"{_F}.logsigmoid({{0}})",
    f"{_F}.softsign({{0}})",
    f"{_F}.tanhshrink({{0}})",
    f"{_F}.leaky_relu({{0}})",
    *(f"torch.{name}({{0}})" for name in ("sigmoid", "tanh", "exp", "log", "log1p", "expm1")),
    *(f"torch.{name}({{0}})" for name in ("sqrt", "rsqrt", "erf", "abs", "square", "reciprocal")),
    *(f"torch.{name}({{0}})" for name in ("sin", "cos", "neg", "sum", "sign")),
    f"{_F}.softmax({{0}}, -1)",
    f"{_F}.log_softmax({{0}}, -1)",
    *(f"torch.{name}({{0}}, -1)" for name in ("logsumexp", "sum", "mean", "amax", "amin", "prod")),
    *(f"torch.{name}({{0}}, -2)" for name in ("sum", "mean", "amax", "amin")),
    *(f"torch.{name}({{0}}, -1, correction={n})" for name in ("var", "std") for n in (1, 0)),
    "torch.linalg.vector_norm({0}, dim=-1)",
    f"{_F}.normalize({{0}}, dim=-1, eps={{eps}})",
    f"{_F}.layer_norm({{0}}, {_ROW}, eps={{eps}})",
    f"{_F}.rms_norm({{0}}, {_ROW}, eps={{eps}})",
    *(f"torch.{name}({{0}}, {{1}})" for name in ("add", "mul", "sub", "div", "maximum", "minimum")),
    f"{_F}.layer_norm({{0}}, {_ROW}, {{1}}, eps={{eps}})",
    f"{_F}.rms_norm({{0}}, {_ROW}, {{1}}, eps={{eps}})",
    f'{_F}.cross_entropy({{0}}, {{1}}, reduction="none")',
    f'{_F}.mse_loss({{0}}, {{1}}, reduction="none")',
    f'{_F}.huber_loss({{0}}, {{1}}, reduction="none")',
    f'{_F}.binary_cross_entropy_with_logits({{0}}, {{1}}, reduction="none")',
    f"{_F}.layer_norm({{0}}, {_ROW}, {{1}}, {{2}}, eps={{eps}})",
    "torch.addcmul({0}, {1}, {2})",
    "torch.lerp({0}, {1}, {2})",
)


@dataclass(frozen=True)
class NativeCall:
    """One call of PyTorch: an expression over a formula's parameters; ``name`` is its function."""

    expression: str
    name: str

    def source(self, parameters: Sequence[str], function: str = "native") -> str:
        """The text of a Python function that makes the call."""
        return f"def {function}({', '.join(parameters)}):\n    return {self.expression}\n"


def find_native(
    function: Callable[..., object],
    parameters: Sequence[str],
    values: Sequence[torch.Tensor | float],
) -> NativeCall | None:
    """The call that computes what ``function`` does, or None.

    ``function`` is tried on small float64 samples of the kinds and broadcast pattern of ``values``.
    """
    import torch

    tensors = [
        name
        for name, value in zip(parameters, values, strict=True)
        if not isinstance(value, int | float)
    ]
    if not 1 <= len(tensors) <= 3:
        return None
    sample = _sample(values)
    expected = function(*sample)
    if not isinstance(expected, torch.Tensor) or not _says_something(expected):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a candidate thinks of these shapes
        return next(
            (call for call in _calls(tensors) if _agrees(call, parameters, sample, expected)), None
        )


def _says_something(values: torch.Tensor) -> bool:
    """Whether agreeing with these values means anything: enough of them are finite numbers."""
    return bool(values.numel()) and float(values.isfinite().double().mean()) > 0.25


def _calls(tensors: Sequence[str]) -> Iterator[NativeCall]:
    for template in CANDIDATES:
        if f"{{{len(tensors) - 1}}}" not in template or f"{{{len(tensors)}}}" in template:
            continue
        name = template.partition("(")[0].rpartition(".")[2]
        for order in itertools.permutations(tensors):
            for epsilon in _EPSILONS if "{eps}" in template else ("",):
                yield NativeCall(template.format(*order, eps=epsilon), name)


def _agrees(
    call: NativeCall, parameters: Sequence[str], sample: Sequence[object], expected: torch.Tensor
) -> bool:
    import torch

    namespace: dict[str, object] = {"torch": torch}
    exec(call.source(parameters), namespace)
    candidate = namespace["native"]
    assert callable(candidate)
    try:
        actual = candidate(*sample)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False  # a call that these shapes or types do not allow
    if actual.shape != expected.shape or actual.is_floating_point() != expected.is_floating_point():
        return False
    # The absolute part covers what cancellation leaves of a value, near 1e-15 here.
    return torch.allclose(actual, expected, rtol=_TOLERANCE, atol=1e-9, equal_nan=True)


def _sample(values: Sequence[torch.Tensor | float]) -> list[torch.Tensor | float]:
    """Small float64 stand-ins: equal lengths stay equal, 1 stays 1, integers stay integers."""
    import torch

    lengths: dict[int, int] = {1: 1}
    generator = torch.Generator().manual_seed(0)
    result: list[torch.Tensor | float] = []
    for value in values:
        if isinstance(value, int | float):
            result.append(value)
            continue
        shape = [
            lengths.setdefault(n, min(_LARGEST_SAMPLE, 8 + 3 * len(lengths))) for n in value.shape
        ]
        if value.dtype == torch.bool:
            result.append(torch.rand(shape, generator=generator) < 0.5)
        elif not value.is_floating_point():
            # Below every length, so that it can also be a position.
            result.append(torch.randint(0, 8, shape, generator=generator, dtype=value.dtype))
        else:
            result.append(_floats(shape, generator))
    return result


def _floats(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Normal numbers whose rows differ in size, so that an epsilon beside a variance shows."""
    import torch

    numbers = torch.randn(list(shape), generator=generator, dtype=torch.float64)
    if len(shape) < 2:
        return numbers * 10
    sizes = torch.logspace(-3, 1.6, max(1, shape[-2]), dtype=torch.float64)
    return numbers * sizes.unsqueeze(-1)
