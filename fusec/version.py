"""The version of fusec, stated once: packaging reads it statically, cache keys import it.

May import nothing.
"""

__version__ = "0.1.0"
