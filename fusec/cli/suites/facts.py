"""Numbers and errors as they stand in a result file. May import the standard library only."""

from __future__ import annotations

from typing import Any

WRONG = 0.1  # an error of this share of the largest value is no rounding
_DIGITS = 5  # significant digits of a number in a result file


def rounded(value: Any) -> Any:
    """Numbers to five significant digits, in whatever holds them."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def known(row: dict[str, Any]) -> dict[str, Any]:
    """The row without what was not measured; a row without ``timing`` has a ``problem``."""
    return {key: rounded(value) for key, value in row.items() if value is not None}


def first_line(error: BaseException) -> str:
    """What an error says first, or what it says then if that is only an announcement."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    announced = lines[:1] and lines[0].endswith(":")
    return " ".join(lines[: 2 if announced else 1])[:200] or type(error).__name__
