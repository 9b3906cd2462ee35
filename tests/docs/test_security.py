"""Every row of the threat model names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "docs/security.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| Attempt |")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_row_names_existing_tests(row: str) -> None:
    attempt, defence, tests = (cell.strip() for cell in row.strip("|").split("|"))
    assert attempt.endswith(".")
    assert defence.endswith(".")
    names = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert names, "the row names no test"
    assert len(names) == tests.count("`") // 2
    for file, name in names:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
