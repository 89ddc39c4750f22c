"""Masks of attentions lie in memory where PyTorch's fast kernels want them to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from fusec.frontend import model_masks
from fusec.frontend.model_masks import lay_out_masks

Tensor = torch.Tensor
QUERIES, KEYS = 6, 5


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """On a CPU as on a GPU."""
    if "left" not in request.node.name and request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(model_masks, "DEVICE", "cpu")


def seen(function: Any, *inputs: Any) -> tuple[Any, list[Any]]:
    """What a compiled function gives, and the masks that its attentions read."""
    masks: list[Any] = []
    attend = F.scaled_dot_product_attention

    class Watch(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is attend:
                masks.append((*args, None)[3] if len(args) > 3 else kwargs.get("attn_mask"))
            return super().call_function(target, args, kwargs)

    def backend(module: Any, examples: Any) -> Any:
        lay_out_masks(module)
        module.graph.lint()
        return Watch(module).run

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(function, backend=backend, dynamic=False)(*inputs), masks


def heads(batch: int, length: int, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 2, length, 8, generator=made)


def triple(batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    return heads(batch, QUERIES), heads(batch, KEYS, 1), heads(batch, KEYS, 2)


@pytest.mark.parametrize("placed", [True, False])
def test_a_mask_of_queries_alone_lies_in_memory(placed: bool) -> None:
    """As that which ``transformers`` makes for a BERT that is compiled."""

    def attend(q: Tensor, k: Tensor, v: Tensor, limit: int) -> Tensor:
        own = (torch.arange(QUERIES)[None, None, :, None] >= limit).expand(len(q), -1, -1, KEYS)
        if placed:
            return F.scaled_dot_product_attention(q, k, v, own)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=own)

    q, k, v = triple()
    for limit in (0, 2):
        found, (mask,) = seen(attend, q, k, v, limit)
        assert mask.stride() == (0, QUERIES * KEYS, KEYS, 1)
        assert mask.untyped_storage().nbytes() == QUERIES * KEYS  # not one for each of a batch
        torch.testing.assert_close(found, attend(q, k, v, limit))


def test_masks_with_numbers_and_gradients_lie_in_memory() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, bias[..., None].expand(3, 2, QUERIES, KEYS))

    q, k, v = triple()
    bias = torch.randn(2, QUERIES)
    found, (mask,) = seen(attend, q, k, v, bias)
    assert mask.stride() == (0, QUERIES * KEYS, KEYS, 1)
    torch.testing.assert_close(found, attend(q, k, v, bias))


def test_a_mask_inside_a_checkpoint_lies_in_memory() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, own: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, own.expand(-1, -1, -1, KEYS))

    def block(q: Tensor, k: Tensor, v: Tensor, own: Tensor) -> Any:
        return checkpoint(attend, q, k, v, own, use_reentrant=False)

    q, k, v = triple()
    own = torch.ones(1, 1, QUERIES, 1, dtype=torch.bool)

    def backend(module: Any, examples: Any) -> Any:
        lay_out_masks(module)
        parts = [p for p in module.modules() if isinstance(p, torch.fx.GraphModule)]
        assert sum("contiguous" in p.code for p in parts) == 1
        return module.forward

    torch._dynamo.reset()
    found = torch.compile(block, backend=backend)(q, k, v, own)
    torch.testing.assert_close(found, attend(q, k, v, own))


def test_a_mask_that_lies_in_memory_stays_as_it_is() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, own: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=own)

    q, k, v = triple()
    masks = (
        torch.ones(3, 1, QUERIES, KEYS, dtype=torch.bool),
        torch.ones(1, 1, 1, KEYS, dtype=torch.bool).expand(3, 1, QUERIES, KEYS),
        torch.ones(KEYS, QUERIES, dtype=torch.bool).t(),
        None,
    )
    for own in masks:
        _, (mask,) = seen(attend, q, k, v, own)
        assert mask is own


def test_masks_of_a_cpu_are_left() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, own: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, own.expand(-1, -1, -1, KEYS))

    q, k, v = triple()
    _, (mask,) = seen(attend, q, k, v, torch.ones(1, 1, QUERIES, 1, dtype=torch.bool))
    assert mask.stride(-1) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_model_attends_fast_on_a_gpu(dynamic: bool) -> None:
    """In one kernel, without matrix products of its own, and backward as well."""
    import fusec
    from fusec.torch_backend import fusec as backend

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        places = torch.arange(q.shape[2], device=q.device)
        own = (places[None, None, :, None] >= 0).expand(len(q), -1, -1, k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=own)

    torch._dynamo.reset()
    made = torch.Generator("cuda").manual_seed(0)
    tensors = [
        torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, generator=made)
        for _ in range(3)
    ]
    ours = [t.clone().requires_grad_() for t in tensors]
    plain = [t.clone().float().requires_grad_() for t in tensors]
    found = torch.compile(attend, backend=backend, dynamic=dynamic)(*ours)
    wanted = F.scaled_dot_product_attention(*plain)
    found.float().square().sum().backward()
    wanted.square().sum().backward()
    assert "bmm" not in str(fusec.last_report())
    torch.testing.assert_close(found.float(), wanted, atol=2e-2, rtol=2e-2)
    for own, other in zip(ours, plain, strict=True):
        assert own.grad is not None
        torch.testing.assert_close(own.grad.float(), other.grad, atol=5e-2, rtol=5e-2)
