"""Builds a WHERE clause from conditions and their arguments."""

from __future__ import annotations

from typing import Any


class Conditions:
    """`?` in a condition is the placeholder of its argument."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.arguments: list[Any] = []

    def add(self, condition: str, *arguments: Any) -> None:
        for argument in arguments:
            self.arguments.append(argument)
            condition = condition.replace("?", f"${len(self.arguments)}", 1)
        self.parts.append(condition)

    def where(self) -> str:
        return " AND ".join(self.parts) or "TRUE"
