"""Modules that run as fused kernels, in the place of those of ``torch.nn`` with the same names.

They are subclasses of these: same arguments, same state dict, same text. Where fusec has no kernel
for an input they compute with PyTorch. May import torch and everything below the public names.
"""

from fusec.nn.activations import GELU, Softmax, SwiGLU
from fusec.nn.formula import Formula
from fusec.nn.losses import CrossEntropyLoss
from fusec.nn.norms import LayerNorm, RMSNorm

__all__ = ["GELU", "CrossEntropyLoss", "Formula", "LayerNorm", "RMSNorm", "Softmax", "SwiGLU"]
