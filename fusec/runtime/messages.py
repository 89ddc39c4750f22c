"""Messages between this process and its helpers: JSON behind a four-byte length.

Imports the standard library only: a helper starts with it.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<I")


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message; OSError when nobody reads any more."""
    body = json.dumps(message).encode()
    left = memoryview(_LENGTH.pack(len(body)) + body)
    while left:  # a pipe without a buffer may take a part
        left = left[stream.write(left) :]
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, Any] | None:
    """Read one message; None when the other side is gone."""
    head = _exactly(stream, _LENGTH.size)
    body = None if head is None else _exactly(stream, _LENGTH.unpack(head)[0])
    if body is None:
        return None
    message: dict[str, Any] = json.loads(body)
    return message


def _exactly(stream: BinaryIO, count: int) -> bytes | None:
    """So many bytes; None where the stream ends before."""
    found = b""
    while len(found) < count:
        more = stream.read(count - len(found))
        if not more:
            return None
        found += more
    return found
