"""Packages import only the packages that the table in docs/architecture.md allows, and that table has no cycle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/kilonova"
ARCHITECTURE = ROOT / "docs/architecture.md"
OPERATIONS = SOURCE / "compute/operations"


def table() -> dict[str, set[str]]:
    """Package to the packages that it may import."""
    text = ARCHITECTURE.read_text().partition("\n## Dependencies\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    return {package: set(re.findall(r"`(\w+)`", allowed)) for package, allowed in rows}


def packages() -> list[str]:
    return sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, without those for type checkers only."""
    tree = ast.parse(path.read_text())
    ignored = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_packages(path: Path) -> set[str]:
    parts = (name.split(".") for name in imports(path) if name.startswith("kilonova."))
    return {part[1] for part in parts}


def test_table_has_every_package() -> None:
    assert sorted(table()) == packages()


@pytest.mark.parametrize("package", packages())
def test_package_imports_only_what_the_table_allows(package: str) -> None:
    own = {package, *table()[package]}
    others = set(packages()) - own
    wrong = {
        str(path.relative_to(SOURCE)): sorted(found)
        for path in sorted((SOURCE / package).rglob("*.py"))
        if (found := imported_packages(path) & others)
    }
    assert not wrong


def test_table_allows_no_package_that_is_not_imported() -> None:
    unused = {}
    for package, allowed in table().items():
        used = set().union(*(imported_packages(path) for path in (SOURCE / package).rglob("*.py")))
        if allowed - used:
            unused[package] = sorted(allowed - used)
    assert not unused


def test_table_has_no_cycle() -> None:
    assert list(TopologicalSorter(table()).static_order())


def test_operation_imports_no_other_operation() -> None:
    operations = {path.stem for path in OPERATIONS.glob("*.py")} - {"__init__"}
    prefix = "kilonova.compute.operations."
    wrong = {}
    for path in sorted(OPERATIONS.rglob("*.py")):
        found = {name.removeprefix(prefix).split(".")[0] for name in imports(path) if name.startswith(prefix)}
        if others := found & operations - {path.stem}:
            wrong[str(path.relative_to(OPERATIONS))] = sorted(others)
    assert not wrong


@pytest.mark.parametrize("package", ["identity", "image", "network", "volume"])
def test_service_reads_no_table_of_compute(package: str) -> None:
    tables = re.findall(r'Table\(\s*"(\w+)"', (SOURCE / "store/schema/compute.py").read_text())
    assert "servers" in tables
    statement = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:{'|'.join(tables)})\b")
    wrong = [str(path) for path in (SOURCE / package).rglob("*.py") if statement.search(path.read_text())]
    assert not wrong
