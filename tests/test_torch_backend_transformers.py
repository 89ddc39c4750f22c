"""Models of ``transformers``, from small configurations with random weights, against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

import fusec
import fusec.torch_backend  # registers the backend
from tests.models import check_same, results

transformers = pytest.importorskip("transformers")
COMMON: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}


def _llama() -> Any:
    config = transformers.LlamaConfig(**COMMON, num_key_value_heads=1, use_cache=False)
    return transformers.LlamaForCausalLM(config)


def _gemma() -> Any:
    config = transformers.GemmaConfig(**COMMON, num_key_value_heads=1, head_dim=8, use_cache=False)
    return transformers.GemmaForCausalLM(config)


def _bert() -> Any:
    config = transformers.BertConfig(
        **COMMON, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return transformers.BertForMaskedLM(config)


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _t5() -> Any:
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        use_cache=False,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("make", [_llama, _gpt2, _bert, _t5, _gemma])
def test_forward_and_backward(make: Callable[[], Any]) -> None:
    model = make()
    words = torch.randint(0, 50, (2, 6))
    named = {"input_ids": words}
    if make is _t5:
        named["decoder_input_ids"] = words[:, :4]
    function = torch.compile(model, backend="fusec", fullgraph=True, options={"backend": "torch"})
    check_same(results(function, model, **named), results(model, model, **named))
    report = fusec.last_report()
    assert [g.stage for g in report.graphs] == ["forward", "backward"]
    assert report.fused >= report.operators // 4
    assert report.saved > 0
