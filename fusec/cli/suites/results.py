"""Result files of suites: one JSON file, written again after every case, that runs can add to.

May import everything below cli, and ``case.py`` of this package.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusec.errors import FusecError
from fusec.runtime.record import device_name

_CHECKOUT = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
# What must be the same for numbers to stand in one file, with the words for it.
_SAME = {"device_name": "machine", "machine": "machine", "versions": "versions", "commit": "commit"}


def default_path(device: str, suite: str) -> Path:
    """``<machine>-<suite>.json``: in the results of a checkout, else in the current folder."""
    folder = _CHECKOUT if _CHECKOUT.is_dir() else Path()
    return folder / f"{slug(device)}-{suite}.json"


def slug(device: str) -> str:
    """The device's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")


class ResultFile:
    """The cases of a file by name, in the order they were measured in, and its header."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = dict(header)
        self.cases: dict[str, dict[str, Any]] = {}

    def join(self) -> None:
        """Take over the cases that the file has; FusecError where they are not comparable."""
        if not self.path.exists():
            return
        content = _read(self.path)
        for key, word in _SAME.items():
            if content.get(key) != self.header.get(key):
                raise FusecError(
                    f"{self.path} was measured with another {word}: "
                    + _difference(content.get(key), self.header.get(key)),
                    hint="numbers of one file come from one machine, its versions and one commit; "
                    "name another file with --json",
                )
        self.cases = {case["name"]: case for case in content["cases"]}
        before = [content["command"], *content.get("more_commands", ())]
        now = [command for command in (self.header["command"],) if command not in before]
        self.header.update(command=before[0], more_commands=[*before[1:], *now])
        self.header["date"] = content["date"]

    def add(self, case: dict[str, Any]) -> None:
        """Add or replace a case and write the file; FusecError where that is impossible."""
        self.cases[case["name"]] = case
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            beside.write_text(text_of(self.header, list(self.cases.values())), encoding="utf-8")
            beside.replace(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error


def check_writable(path: Path) -> None:
    """FusecError where a result file cannot be written, before minutes are spent on its content."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists():
            path.open("r+b").close()
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> FusecError:
    """What is said of a file that cannot be written."""
    return FusecError(f"cannot write {path}: {(error.strerror or str(error)).lower()}")


def text_of(header: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> str:
    """The file: the header spread out, of each case one line of facts and one line a row."""
    head = json.dumps({**header, "cases": []}, indent=2, ensure_ascii=False)
    body = ",\n".join(_case_text(case) for case in cases)
    return head.removesuffix("[]\n}") + (f"[\n{body}\n  ]\n}}\n" if cases else "[]\n}\n")


def _case_text(case: Mapping[str, Any]) -> str:
    facts = json.dumps({k: v for k, v in case.items() if k != "rows"}, ensure_ascii=False)
    rows = ",\n".join(f"      {json.dumps(row, ensure_ascii=False)}" for row in case["rows"])
    return f'    {facts[:-1]}, "rows": [' + (f"\n{rows}\n    ]}}" if rows else "]}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(content, dict)
        assert isinstance(content["cases"], list)
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise FusecError(f"{path} is not a result file", hint="name another with --json") from error
    return content


def _difference(before: object, now: object) -> str:
    """The first thing in which two facts differ, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in (*before, *now):
            if before.get(key) != now.get(key):
                return f"{key} {before.get(key)} there, {now.get(key)} here"
    return f"{before} there, {now} here"
