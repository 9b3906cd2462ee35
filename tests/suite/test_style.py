"""Style and types of the code. `make lint` checks the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MAX_LINES = 500
# The first revision, which Alembic wrote.
GENERATED = "0001_initial.py"
ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "bench", "examples")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("mypy",), id="types"),
        pytest.param(("ruff", "check", "--quiet", *FOLDERS), id="lint"),
        pytest.param(("ruff", "format", "--check", "--quiet", *FOLDERS), id="format"),
    ],
)
def test_style_and_types(command: tuple[str, ...]) -> None:
    program, *arguments = command
    ended = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert [path.name for path, length in lengths.items() if length > MAX_LINES] == [GENERATED]
