"""A validated token, and the compact form in which it travels inside the encrypted string."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from typing import Literal, NamedTuple

import msgspec

METHODS = ("password", "token")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, in which scope, with which roles.

    `roles` includes the implied ones, in lower case: names of roles compare without case. `role_ids` are ids and names.
    """

    user_id: str
    user_name: str
    user_domain_id: str
    user_domain_name: str
    project_id: str | None = None
    project_name: str | None = None
    project_domain_id: str | None = None
    project_domain_name: str | None = None
    domain_id: str | None = None
    domain_name: str | None = None
    system: bool = False
    roles: frozenset[str] = frozenset()
    role_ids: tuple[tuple[str, str], ...] = ()
    methods: tuple[str, ...] = ("password",)
    issued_at: float = 0.0
    expires_at: float = 0.0
    audit_ids: tuple[str, ...] = ()
    is_admin_project: bool = True

    @property
    def audit_id(self) -> str:
        return self.audit_ids[0] if self.audit_ids else ""

    @property
    def scope(self) -> Scope:
        if self.project_id is not None:
            return Scope("project", self.project_id)
        if self.domain_id is not None:
            return Scope("domain", self.domain_id)
        return SYSTEM if self.system else UNSCOPED


# No token is of the kind "inherited", only assignments are: of roles on all projects of a domain.
ScopeKind = Literal["project", "domain", "system", "inherited", ""]
INHERITED: Literal["inherited"] = "inherited"


class Scope(NamedTuple):
    kind: ScopeKind
    id: str


SYSTEM = Scope("system", "all")
UNSCOPED = Scope("", "")
_KINDS: tuple[ScopeKind, ...] = ("", "project", "domain", "system")


class Claims(NamedTuple):
    """What the encrypted string itself says. Whether it still holds is looked up."""

    user_id: str
    scope: Scope
    methods: tuple[str, ...]
    issued_at: float
    expires_at: float
    audit_ids: tuple[str, ...]


class _Wire(msgspec.Struct, array_like=True):
    form: Literal[1]
    user_id: bytes
    scope_kind: int
    scope_id: bytes
    methods: int
    issued_at: float
    expires_at: float
    audit_ids: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Wire).decode


def pack(claims: Claims) -> bytes:
    return _encode(
        _Wire(
            1,
            _short(claims.user_id),
            _KINDS.index(claims.scope.kind),
            _short(claims.scope.id),
            sum(1 << METHODS.index(method) for method in claims.methods),
            claims.issued_at,
            claims.expires_at,
            list(claims.audit_ids),
        )
    )


def unpack(raw: bytes) -> Claims:
    """Raises ValueError or IndexError for what `pack` did not write."""
    wire = _decode(raw)
    return Claims(
        _long(wire.user_id),
        Scope(_KINDS[wire.scope_kind], _long(wire.scope_id)),
        tuple(method for bit, method in enumerate(METHODS) if wire.methods >> bit & 1),
        wire.issued_at,
        wire.expires_at,
        tuple(wire.audit_ids),
    )


def new_audit_id() -> str:
    return urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()


# Nearly all ids are 32 hex digits, half as long as bytes. The first byte tells which form an id has.
_AS_TEXT, _AS_HEX = b"\0", b"\1"


def _short(ident: str) -> bytes:
    if len(ident) == 32:
        try:
            raw = bytes.fromhex(ident)
        except ValueError:
            raw = b""
        if raw.hex() == ident:
            return _AS_HEX + raw
    return _AS_TEXT + ident.encode()


def _long(raw: bytes) -> str:
    return raw[1:].hex() if raw[:1] == _AS_HEX else raw[1:].decode()
