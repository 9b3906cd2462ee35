"""Run by Alembic. The caller gives a connection (SQLite) or, for a script, the name of a dialect (PostgreSQL)."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from kilonova.store.migrations.types import rendered
from kilonova.store.schema import metadata


def render(kind: str, thing: Any, autogenerate: Any) -> str | Literal[False]:
    """Name our own types in a new revision instead of spelling them out."""
    name = rendered(thing) if kind == "type" else None
    if name is None:
        return False
    autogenerate.imports.add(f"from kilonova.store.migrations.types import {name}")
    return name


attributes = context.config.attributes

if context.is_offline_mode():
    # The caller runs the script inside a transaction of its own.
    context.configure(dialect_name=attributes["dialect"], target_metadata=metadata, transactional_ddl=False)
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
