"""Files that a running process reads again on SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Reloads:
    """The actions of a reload, each with the name of what it reads. An action that fails changes nothing."""

    def __init__(self) -> None:
        self._actions: list[tuple[str, Callable[[], None]]] = []

    def add(self, name: str, action: Callable[[], None]) -> None:
        self._actions.append((name, action))

    def run(self) -> None:
        """Run every action, even if one fails."""
        for name, action in self._actions:
            try:
                action()
            except Exception as error:
                log.error("%s not reloaded, the former one stays in use: %s", name, error)
            else:
                log.info("%s reloaded", name)
