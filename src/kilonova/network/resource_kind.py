"""Decodes the resources of one kind from responses of a network service."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder

from kilonova.http.client import valid_response

T = TypeVar("T")


class _Link(Struct, frozen=True):
    rel: str
    href: str


class ResourceKind(Generic[T]):
    """A kind of resource: its names in bodies, its path, and its decoders."""

    def __init__(self, singular: str, plural: str, one: type[T], many: type[list[T]]) -> None:
        self.singular = singular
        self.plural = plural
        self.path = f"/v2.0/{plural.replace('_', '-')}"
        self._decode_one = Decoder(one).decode
        self._decode_many = Decoder(many).decode

    @valid_response("network")
    def one(self, body: bytes) -> T:
        return self._decode_one(_members(body)[self.singular])

    @valid_response("network")
    def many(self, body: bytes) -> list[T]:
        """The created resources of a request that creates several."""
        return self._decode_many(_members(body)[self.plural])

    @valid_response("network")
    def page(self, body: bytes) -> tuple[list[T], str]:
        """The resources, and the path of the next page or ""."""
        members = _members(body)
        links = _links(members[f"{self.plural}_links"]) if f"{self.plural}_links" in members else []
        following = next((link.href for link in links if link.rel == "next"), "")
        # The link may have the service's public address, which need not be reachable from here.
        return self._decode_many(members[self.plural]), "".join(following.partition("/v2.0/")[1:])


_members = Decoder(dict[str, Raw]).decode
_links = Decoder(list[_Link]).decode
