"""The intermediate representation: typed, hash-consed nodes over named dimensions.

May import ``fusec.source`` and ``fusec.errors`` and nothing above them.
"""
