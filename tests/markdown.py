"""Fenced blocks of a Markdown file, each with the HTML comment right above it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(
    r"(?:^<!-- (?P<directive>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """``start`` and ``end`` are offsets of the text between the fences."""

    language: str
    directive: str
    text: str
    line: int
    start: int
    end: int


def blocks(markdown: str) -> list[Block]:
    """Every fenced block, in order."""
    return [
        Block(
            match["language"],
            match["directive"] or "",
            match["text"],
            markdown.count("\n", 0, match.start("text")),
            match.start("text"),
            match.end("text"),
        )
        for match in _FENCE.finditer(markdown)
    ]


def replaced(markdown: str, changes: dict[Block, str]) -> str:
    """``markdown`` with new texts in some blocks."""
    for block in sorted(changes, key=lambda b: -b.start):
        markdown = markdown[: block.start] + changes[block] + markdown[block.end :]
    return markdown
