"""From text, PyTorch functions and sympy expressions to a Graph.

May import ``fusec.source``, ``fusec.errors`` and ``fusec.ir``; never ``fusec.passes``.
"""
