"""What a cubin says of its kernel: registers of a thread, and local memory it spills to. May import
nothing.

A cubin is an ELF file. ``.nv.info`` lists attributes of functions, each a format, a kind and a
value; those with a value of their own size hold the function's symbol and a number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_INFO = b".nv.info"
_SIZED, _FRAME_SIZE, _REGISTERS = 0x04, 0x11, 0x2F  # EIFMT_SVAL and two EIATTR
_SYMBOLS, _SYMBOL_SIZE = 2, 24  # SHT_SYMTAB and its entries


class Facts(NamedTuple):
    """What one thread of a kernel needs: registers, and bytes of local memory.

    Local memory is where values go that no register holds, and where some functions of the
    mathematics library keep tables (16 to 48 bytes).
    """

    registers: int
    local_bytes: int

    def __str__(self) -> str:
        local = f"{self.local_bytes} bytes of local memory" if self.local_bytes else "no spills"
        return f"{self.registers} registers, {local}"


def read_facts(cubin: bytes, entry: str) -> Facts | None:
    """The facts of kernel ``entry``; None for what is no cubin, or one of an unknown form."""
    try:
        return _read(cubin, entry.encode())
    except (struct.error, IndexError, ValueError):
        return None


class _Section(NamedTuple):
    name: bytes
    kind: int
    link: int  # of a symbol table: where its names are
    content: bytes


def _read(cubin: bytes, entry: bytes) -> Facts | None:
    if cubin[:5] != b"\x7fELF\x02":
        return None
    sections = _sections(cubin)
    symbol = _symbol(sections, entry)
    found = {
        kind: number
        for section in sections
        if section.name == _INFO
        for kind, of, number in _attributes(section.content)
        if of == symbol
    }
    if symbol is None or _REGISTERS not in found:
        return None
    return Facts(found[_REGISTERS], found.get(_FRAME_SIZE, 0))


def _sections(cubin: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, naming = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQI", cubin, start + k * size) for k in range(count)]
    names = _content(cubin, headers[naming])
    return [_Section(_text(names, h[0]), h[1], h[6], _content(cubin, h)) for h in headers]


def _content(cubin: bytes, header: tuple[int, ...]) -> bytes:
    return cubin[header[4] : header[4] + header[5]]


def _symbol(sections: list[_Section], wanted: bytes) -> int | None:
    """The number of a symbol."""
    table = next((section for section in sections if section.kind == _SYMBOLS), None)
    if table is None:
        return None
    names = sections[table.link].content
    for number in range(len(table.content) // _SYMBOL_SIZE):
        (name,) = struct.unpack_from("<I", table.content, number * _SYMBOL_SIZE)
        if _text(names, name) == wanted:
            return number
    return None


def _attributes(content: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, symbol and number of the attributes that have both."""
    place = 0
    while place < len(content):
        form, kind, size = struct.unpack_from("<BBH", content, place)
        place += 4
        if form != _SIZED:
            continue  # the value is where others have its size
        if size == 8:
            yield (kind, *struct.unpack_from("<II", content, place))
        place += size


def _text(names: bytes, start: int) -> bytes:
    return names[start : names.index(b"\0", start)]
