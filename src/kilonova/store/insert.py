"""INSERT of one row."""

from __future__ import annotations

from kilonova.store.interface import Row, Transaction


async def insert_row(tx: Transaction, table: str, row: Row) -> Row:
    """Insert the row; return it with all columns of the table."""
    values = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    sql = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values}) RETURNING *"
    inserted = await tx.fetch_one(sql, *row.values())
    assert inserted is not None
    return inserted
