"""Calls made ready, kept for the next process: it needs no parser, no passes and no printer.

A recipe is a :class:`~fusec.runtime.prepared.CallPlan` with the variants behind it, in the cache
under everything that decides it: the formula and its options, the key of the call, the state of
fusec's sources, the versions below, the device or compiler, the settings. What does not fit, or
names a kernel that is gone, counts as absent. May import ``settings``, ``runtime.cache``,
``runtime.cubin`` and ``runtime.prepared``, and the builders inside functions.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fusec import settings
from fusec.runtime.cache import checkout, default_store, digest
from fusec.runtime.cubin import Facts
from fusec.runtime.prepared import BufferPlan, CallPlan, StepPlan

if TYPE_CHECKING:
    import torch

    from fusec.runtime.formula import Formula

LIMIT = 16  # recipes that one function of one process writes
_FILE = "recipe.json"
_KEPT = {("cpp", "cpu"), ("triton", "cuda"), ("cuda", "cuda")}  # what no interpreter runs
# Settings that change neither a kernel nor how it is launched.
_INDIFFERENT: dict[str, Any] = {"cache_dir": None, "no_helper": False, "no_launcher": False}


class Built(NamedTuple):
    """A kernel as ``f.variants`` lists it, and the cache entry it is in."""

    binary: str
    kernel: str
    backend: str
    key: str
    why: str
    facts: Facts | None = None


class Recipe(NamedTuple):
    """A call made ready, the class of arguments it belongs to, and the kernels it uses."""

    plan: CallPlan
    kind: str
    built: tuple[Built, ...]


def usable() -> bool:
    """Whether calls are kept: not when somebody wants to watch the compiler work."""
    now = settings.get()
    return not now.debug and now.dump is None and not now.no_cache


def key(
    formula: Formula, asked: str, backend: str, device: torch.device, call: object
) -> str | None:
    """Where the recipe of a call belongs; None when it belongs nowhere.

    ``asked`` is the backend that the caller named: where that is ``auto``, Triton's place may be
    taken by CUDA C++.
    """
    if (backend, device.type) not in _KEPT or not usable() or not formula.keepable():
        return None
    if backend == "cpp":
        below = _cpp_machine()
    else:
        below = _cuda_machine(device, formula.build if asked != "triton" else None)
    if below is None:
        return None
    return digest(
        {
            "kind": "recipe",
            **formula.identity(),
            "backend": f"{backend}, asked for {asked}",
            "call": repr(call),
            "settings": repr(settings.get()._replace(**_INDIFFERENT)),
            **below,
            **checkout(),
        }
    )


def load(place: str) -> Recipe | None:
    """The recipe at ``place``, or None."""
    entry = default_store().get(place)
    if entry is None:
        return None
    try:
        return _recipe(json.loads(entry.files[_FILE]))
    except (KeyError, ValueError, TypeError):
        default_store().remove(place)
        return None


def forget(place: str) -> None:
    """Take a recipe away that names a kernel which is gone, so that a new one is kept."""
    default_store().remove(place)


def save(place: str, recipe: Recipe) -> None:
    """Keep a recipe; failing to is no error."""
    default_store().put(place, {_FILE: json.dumps(recipe).encode()})


def _recipe(data: Sequence[Any]) -> Recipe:
    (outputs, temporaries, steps), kind, built = data
    plan = CallPlan(
        tuple(BufferPlan(tuple(p), tuple(s), t) for p, s, t in outputs),
        tuple(BufferPlan(tuple(p), tuple(s), t) for p, s, t in temporaries),
        tuple(StepPlan(*map(_frozen, step)) for step in steps),
    )
    return Recipe(plan, kind, tuple(map(_built, built)))


def _built(data: Sequence[Any]) -> Built:
    binary, kernel, backend, key, why, facts = data
    return Built(binary, kernel, backend, key, why, None if facts is None else Facts(*facts))


def _frozen(value: Any) -> Any:
    """Lists, as JSON has them, as the tuples they were."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _cpp_machine() -> Mapping[str, str] | None:
    import torch

    from fusec.runtime.build_cpp import builder_identity

    builder = builder_identity()
    return None if builder is None else {"torch": torch.__version__, **builder}


def _cuda_machine(device: torch.device, build: str | None) -> Mapping[str, str]:
    """The device, and with ``build`` what compiles CUDA C++ there."""
    facts = _cuda_facts(device.index or 0)
    if build is None:
        return facts
    from fusec.runtime.build_cuda import find_compiler

    return {**facts, "compiler": repr(find_compiler(build))}


@functools.cache
def _cuda_facts(index: int) -> Mapping[str, str]:
    import torch

    from fusec.runtime.triton_private import triton_version

    facts = torch.cuda.get_device_properties(index)
    parts = (
        facts.name, facts.major, facts.minor, facts.multi_processor_count, facts.total_memory,
        getattr(facts, "L2_cache_size", 0),
    )  # fmt: skip
    return {"torch": torch.__version__, "triton": triton_version(), "device": repr(parts)}
