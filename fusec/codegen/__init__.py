"""From a Region to source text: layout, kernel, lowering and the printers.

May import ``fusec.ir``, ``fusec.source``, ``fusec.settings``, ``fusec.errors`` and
``fusec.passes.fuse``.
"""
