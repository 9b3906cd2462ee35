"""Routes requests with a trie of path segments: a match costs by the path's length, not by the number of routes."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Node(Generic[T]):
    __slots__ = ("children", "methods", "wildcard")

    def __init__(self) -> None:
        self.children: dict[str, Node[T]] = {}
        self.wildcard: tuple[str, Node[T]] | None = None
        self.methods: dict[str, T] = {}


class Router(Generic[T]):
    """Paths look like `/servers/{server_id}/tags`. A fixed segment takes precedence over a parameter."""

    def __init__(self) -> None:
        self.root: Node[T] = Node()

    def add(self, method: str, path: str, target: T) -> None:
        node = self.root
        for segment in split(path):
            if segment.startswith("{"):
                name = segment[1:-1]
                if node.wildcard is None:
                    node.wildcard = (name, Node())
                elif node.wildcard[0] != name:
                    raise ValueError(f"{path}: this parameter is already named {{{node.wildcard[0]}}}")
                node = node.wildcard[1]
            else:
                node = node.children.setdefault(segment, Node())
        if method in node.methods:
            raise ValueError(f"{method} {path} is declared twice")
        node.methods[method] = target

    def match(self, segments: list[str]) -> tuple[dict[str, T], dict[str, str]] | None:
        """The targets at this path by method, and the path's parameters; None if there are none."""
        return _descend(self.root, segments, 0)


def split(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def _descend(node: Node[T], segments: list[str], at: int) -> tuple[dict[str, T], dict[str, str]] | None:
    if at == len(segments):
        return (node.methods, {}) if node.methods else None
    segment = segments[at]
    child = node.children.get(segment)
    if child is not None:
        found = _descend(child, segments, at + 1)
        if found is not None:
            return found
    if node.wildcard is not None:
        name, child = node.wildcard
        found = _descend(child, segments, at + 1)
        if found is not None:
            found[1][name] = segment
            return found
    return None
