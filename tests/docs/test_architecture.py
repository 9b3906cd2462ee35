"""The requests that docs/architecture.md traces: files and functions exist, and unshelve stays short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/kilonova"
TEXT = (ROOT / "docs/architecture.md").read_text()
TRACED = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", TEXT)


def defined(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_three_requests_are_traced() -> None:
    for title in ("Boot: from the request to the guest", "Unshelve to a host", "Rebuild of a volume-backed server"):
        assert len(re.findall(r"`([\w/]+\.py)` `([\w.]+)`", section(title))) >= 10, title


@pytest.mark.parametrize(("file", "name"), TRACED)
def test_traced_function_exists(file: str, name: str) -> None:
    assert name in defined(SOURCE / file)


def test_paths_in_the_text_exist() -> None:
    paths = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+(?:/|\.py))`", TEXT))
    missing = [path for path in sorted(paths) if not (SOURCE / path).exists() and not (ROOT / path).exists()]
    assert not missing


def test_unshelve_needs_at_most_twelve_files_of_compute() -> None:
    files = {file for file, _ in re.findall(r"`([\w/]+\.py)` `([\w.]+)`", section("Unshelve to a host"))}
    assert len([file for file in files if file.startswith("compute/")]) <= 12
