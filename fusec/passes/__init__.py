"""Passes: pure functions from a graph to a better graph, and from the graph to a plan.

May import ``fusec.source``, ``fusec.settings``, ``fusec.errors`` and ``fusec.ir``; never
``fusec.frontend``.
"""
