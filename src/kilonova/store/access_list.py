"""Access lists: the projects that may use a private row."""

from __future__ import annotations

from kilonova.store.interface import Reader, Transaction


class AccessList:
    """`table` has the columns `column`, which is the `id` of a row of `owner`, and `project_id`."""

    def __init__(self, table: str, column: str, owner: str) -> None:
        self._table = table
        self._column = column
        self._owner = owner

    async def projects(self, reader: Reader, owner_id: int | str) -> list[str]:
        sql = f"SELECT project_id FROM {self._table} WHERE {self._column} = $1 ORDER BY project_id"
        return [found["project_id"] for found in await reader.fetch(sql, owner_id)]

    async def grant(self, tx: Transaction, owner_id: int | str, project_id: str) -> bool:
        """False if the project had access already."""
        sql = f"INSERT INTO {self._table} ({self._column}, project_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        return await tx.execute(sql, owner_id, project_id) > 0

    async def revoke(self, tx: Transaction, owner_id: int | str, project_id: str) -> bool:
        """False if the project had no access."""
        sql = f"DELETE FROM {self._table} WHERE {self._column} = $1 AND project_id = $2"
        return await tx.execute(sql, owner_id, project_id) > 0

    def condition(self, project: str) -> str:
        """SQL: the row of `owner` is public, or the project (an SQL expression) has access."""
        access = f"SELECT 1 FROM {self._table} a WHERE a.{self._column} = {self._owner}.id AND a.project_id = {project}"
        return f"(is_public OR EXISTS ({access}))"
