"""Language models of the package ``transformers`` in training, of few layers and random weights.

May import the standard library, and ``cli.suites.case``; torch and transformers inside functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusec.cli.suites.case import SuiteCase

if TYPE_CHECKING:
    import torch

# The vocabularies are those of the real models: that of GPT-2 is odd.
KINDS = ("llama", "gpt2", "bert")


@dataclass(frozen=True)
class Transformer:
    """A language model of one of ``KINDS`` with ``depth`` layers of ``width``, and a batch of
    sequences of ``tokens``.
    """

    kind: str
    depth: int
    width: int
    batch: int
    tokens: int
    dtype: str
    device: str

    @classmethod
    def of(cls, case: SuiteCase, device: str) -> Transformer:
        """That of a case."""
        batch, tokens = case.shape
        width = 128 if device == "cpu" else 1024
        kind, depth = case.operation.name, case.operation.depth
        return cls(kind, depth, width, batch, tokens, case.dtype, device)

    def step(self, backend: str | None, wide: bool = False) -> Callable[[], Any]:
        """A step of training, to the loss and the gradients; the same numbers for every ``backend``
        of ``torch.compile``, None for the model as it is. ``wide``: in float64.

        Raises ImportError without ``transformers``.
        """
        import torch

        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[self.dtype]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self._model().to(dtype)
            words = torch.randint(0, model.config.vocab_size, (self.batch, self.tokens))
        if wide:
            model = copy.deepcopy(model).double()
        model, words = model.to(self.device), words.to(self.device)
        call = compiled(model, backend)
        parameters = list(model.parameters())

        def step() -> tuple[torch.Tensor, ...]:
            for parameter in parameters:
                parameter.grad = None
            loss = call(input_ids=words, labels=words).loss
            loss.backward()
            return (loss.detach(), *(p.grad for p in parameters if p.grad is not None))

        return step

    def _model(self) -> Any:
        import transformers

        heads, places = self.width // 64, max(self.tokens, 16)
        none: dict[str, Any] = {"use_cache": False}
        if self.kind == "llama":
            config: Any = transformers.LlamaConfig(
                hidden_size=self.width, intermediate_size=11 * self.width // 4,
                num_hidden_layers=self.depth, num_attention_heads=heads,
                max_position_embeddings=places, **none,
            )  # fmt: skip
            return transformers.LlamaForCausalLM(config)
        if self.kind == "gpt2":
            none |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
            config = transformers.GPT2Config(
                n_embd=self.width, n_layer=self.depth, n_head=heads, n_positions=places, **none
            )
            return transformers.GPT2LMHeadModel(config)
        none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        config = transformers.BertConfig(
            hidden_size=self.width, intermediate_size=4 * self.width, num_attention_heads=heads,
            num_hidden_layers=self.depth, max_position_embeddings=places, **none,
        )  # fmt: skip
        return transformers.BertForMaskedLM(config)


def compiled(model: Any, backend: str | None) -> Any:
    """A model for ``torch.compile``, or as it is without a ``backend``."""
    import torch

    if backend is None:
        return model
    chosen: Any = backend
    if backend == "fusec":  # by itself: a checkout has no entry point that names it
        from fusec.torch_backend import fusec as chosen
    return torch.compile(model, backend=chosen, dynamic=False)


def together(found: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A loss, and all gradients as one vector: some vanish, and are rounding errors alone."""
    import torch

    loss, *gradients = found
    return loss, torch.cat([g.flatten() for g in gradients])
