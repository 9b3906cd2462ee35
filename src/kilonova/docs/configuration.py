"""docs/configuration.md: the tables of settings, from `Config`. The text above them is written by hand."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from kilonova.config import Config
from kilonova.docs.markdown import code, table

MARK = "<!-- The table below is written by `make docs` from src/kilonova/config.py. -->"


def page(root: Path) -> str:
    file = root / "docs" / "configuration.md"
    words = file.read_text() if file.exists() else "# Configuration\n\n"
    sections = [field for field in msgspec.structs.fields(Config) if _is_section(field.type)]
    plain = [field for field in msgspec.structs.fields(Config) if not _is_section(field.type)]
    parts = [
        words.partition(MARK)[0] + MARK,
        "## Settings without a section",
        " ".join((Config.__doc__ or "").partition("\n\n")[2].split()),
        _settings("", plain, {}),
        *(_section(field.name, field.type) for field in sections),
    ]
    return "\n\n".join(parts) + "\n"


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _section(name: str, kind: Any) -> str:
    words = " ".join((kind.__doc__ or "").split())
    return f"## [{name}]\n\n{words}\n\n{_settings(name, msgspec.structs.fields(kind), _meanings(kind))}"


def _settings(section: str, fields: Any, meanings: dict[str, str]) -> str:
    head = ["Setting", "Default", "In the environment"]
    rows = []
    for field in fields:
        variable = "KILONOVA_" + (f"{section}__" if section else "") + field.name
        row = [code(field.name), code(_default(field)), code(variable.upper())]
        rows.append([*row, meanings.get(field.name, "")] if meanings else row)
    return table([*head, "Meaning"] if meanings else head, rows)


def _meanings(kind: Any) -> dict[str, str]:
    """The docstrings below the fields of a struct, by field."""
    (struct,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(struct, ast.ClassDef)
    found = {}
    for field, below in zip(struct.body, struct.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def _default(field: Any) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return msgspec.json.encode(value).decode()
