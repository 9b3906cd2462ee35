"""Alembic runs this file. The caller sets a connection (SQLite) or the dialect of a script (PostgreSQL)."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from kilonova.store.migrations.types import type_name
from kilonova.store.schema import metadata


def render(kind: str, item: Any, autogenerate: Any) -> str | Literal[False]:
    """Write our own column types by name in a new revision."""
    name = type_name(item) if kind == "type" else None
    if name is None:
        return False
    autogenerate.imports.add(f"from kilonova.store.migrations.types import {name}")
    return name


attributes = context.config.attributes

if context.is_offline_mode():
    # The caller runs the script inside its own transaction.
    context.configure(
        dialect_name=attributes["dialect"], target_metadata=metadata, transactional_ddl=False, literal_binds=True
    )
else:
    context.configure(
        connection=attributes["connection"],
        target_metadata=metadata,
        # SQLite alters a table by copying it, and can do so inside a transaction.
        render_as_batch=attributes.get("render_as_batch", True),
        transactional_ddl=True,
        render_item=render,
    )

with context.begin_transaction():
    context.run_migrations()
