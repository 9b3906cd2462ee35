"""A kind of operation is spelt once, as a constant: operations, comparisons and SQL use it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kilonova.compute.operations
import kilonova.share.operations
import kilonova.volume.operations  # noqa: F401  registers the operations
from kilonova.compute import operation_kinds as compute_kinds
from kilonova.operations.definition import all_kinds
from kilonova.share import operation_kinds as share_kinds
from kilonova.volume import operation_kinds as volume_kinds

SOURCE = Path(__file__).parents[2] / "src/kilonova"
# `kind = 'boot'`, `o.kind IN ('boot', …)`, `kind <> 'boot'`
SQL = re.compile(r"\bkind\s*(?:=|<>|!=|(?:NOT )?IN)\s*\(?((?:\s*'\w+',?)+)", re.IGNORECASE)


def constants() -> dict[str, str]:
    """Constant by the kind."""
    modules = (compute_kinds, share_kinds, volume_kinds)
    return {kind: name for module in modules for name, kind in vars(module).items() if name.isupper()}


def sources() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.parent != SOURCE / "store/migrations/versions"]


def texts(node: ast.AST) -> Iterator[str]:
    """The strings of a literal, alone or in a tuple, list or set."""
    for part in ast.walk(node) if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Set) else ():
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def is_kind(node: ast.AST) -> bool:
    """Whether the expression is `kind`, `x.kind` or `x["kind"]`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "kind"
    return (isinstance(node, ast.Name) and node.id == "kind") or (
        isinstance(node, ast.Attribute) and node.attr == "kind"
    )


def literal_kinds(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every literal that is used as a kind."""
    for node in ast.walk(tree):
        used: list[ast.AST] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for words in SQL.findall(node.value):
                yield from ((node.lineno, word) for word in re.findall(r"\w+", words) if word in constants())
        elif isinstance(node, ast.Compare) and any(is_kind(side) for side in (node.left, *node.comparators)):
            used = [node.left, *node.comparators]
        elif isinstance(node, ast.Assign) and any(is_kind(target) for target in node.targets):
            used = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("get_kind", "find_kind"):
            used = [*node.args]
        for part in used:
            yield from ((node.lineno, text) for text in texts(part) if text in constants())


def test_each_operation_has_a_constant_for_its_kind() -> None:
    registered = {kind.kind for kind in all_kinds() if kind.__module__.startswith("kilonova.")}
    assert registered == set(constants())
    assert all(name == kind.upper() for kind, name in constants().items())


def test_kinds_are_no_literals() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} {text}"
        for path in sources()
        for line, text in literal_kinds(ast.parse(path.read_text()))
    ]
    assert not wrong


def test_literals_are_found() -> None:
    for source in (
        "sql = \"SELECT 1 FROM operations WHERE kind = 'boot'\"",
        "sql = f\"SELECT 1 FROM operations o WHERE o.kind IN ('delete', '{x}')\"",
        'row["kind"] == "delete"',
        'op.kind in ("boot", "rebuild")',
        'class Boot: kind = "boot"',
        'get_kind("extend_volume", Params)',
    ):
        assert list(literal_kinds(ast.parse(source))), source
