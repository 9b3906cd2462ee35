"""A validated token, and the compact encoding of its claims inside the encrypted token."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from typing import Any, Literal, NamedTuple

import msgspec

from kilonova.policy.credentials import Credentials

# Methods by which users log in.
LOGIN_METHODS = ("password", "token", "application_credential")
# Methods that the attribute `methods` of a token can contain. The order is part of the encoding of tokens.
METHODS = ("password", "token", "ec2credential", "application_credential")


class TokenTrust(NamedTuple):
    """The trust by which a token was issued to the trustee."""

    id: str
    impersonation: bool
    trustor_user_id: str
    trustee_user_id: str


class TokenApplicationCredential(NamedTuple):
    """The application credential by which a token was issued. A restricted one cannot manage others."""

    id: str
    name: str
    restricted: bool


# A token by these methods has all roles of its user in the scope, unless a trust limits it.
_UNLIMITED_METHODS = frozenset({"password", "token"})


class Token(Credentials, frozen=True, kw_only=True):
    """Credentials with the token's own attributes. `role_ids` are ids and names of the roles."""

    role_ids: tuple[tuple[str, str], ...] = ()
    methods: tuple[str, ...] = ("password",)
    issued_at: float = 0.0
    expires_at: float = 0.0
    audit_ids: tuple[str, ...] = ()
    token_epoch: int = 0
    trust: TokenTrust | None = None
    application_credential: TokenApplicationCredential | None = None

    @property
    def is_delegated(self) -> bool:
        """Whether the token may have fewer roles than its user."""
        return not _UNLIMITED_METHODS.issuperset(self.methods) or self.trust is not None

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


# Only role assignments have the inherited kinds: for all projects of a domain, or for all projects below a project.
ScopeKind = Literal["project", "domain", "system", "inherited", "inherited_project", ""]
INHERITED: Literal["inherited"] = "inherited"
INHERITED_PROJECT: Literal["inherited_project"] = "inherited_project"


class Scope(NamedTuple):
    kind: ScopeKind
    id: str


SYSTEM = Scope("system", "all")
UNSCOPED = Scope("", "")
_KINDS: tuple[ScopeKind, ...] = ("", "project", "domain", "system")


class Claims(NamedTuple):
    """The content of an encrypted token. `TokenProvider` checks whether it is still valid."""

    user_id: str
    scope: Scope
    methods: tuple[str, ...]
    issued_at: float
    expires_at: float
    audit_ids: tuple[str, ...]
    # The column `users.token_epoch` when the credentials were read. A new password, for example, increases the column,
    # which ends tokens with a lower value.
    token_epoch: int = 0
    trust_id: str = ""
    application_credential_id: str = ""


class _Encoded(msgspec.Struct, array_like=True):
    # Version 2 is a token of a trust or an application credential. Earlier releases refuse this version.
    version: Literal[1, 2]
    user_id: bytes
    scope_kind: int
    scope_id: bytes
    methods: int
    issued_at: float
    expires_at: float
    audit_ids: list[str]
    # Tokens of earlier releases end here.
    token_epoch: int = 0
    trust_id: bytes = b""
    application_credential_id: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Encoded).decode


def pack(claims: Claims) -> bytes:
    delegated: dict[str, Any] = {}
    if claims.trust_id or claims.application_credential_id:
        delegated["trust_id"] = _encode_id(claims.trust_id)
        delegated["application_credential_id"] = _encode_id(claims.application_credential_id)
    return _encode(
        _Encoded(
            2 if delegated else 1,
            _encode_id(claims.user_id),
            _KINDS.index(claims.scope.kind),
            _encode_id(claims.scope.id),
            sum(1 << METHODS.index(method) for method in claims.methods),
            claims.issued_at,
            claims.expires_at,
            list(claims.audit_ids),
            claims.token_epoch,
            **delegated,
        )
    )


def unpack(raw: bytes) -> Claims:
    """Raises ValueError or IndexError for bytes that `pack` did not write."""
    encoded = _decode(raw)
    return Claims(
        _decode_id(encoded.user_id),
        Scope(_KINDS[encoded.scope_kind], _decode_id(encoded.scope_id)),
        tuple(method for bit, method in enumerate(METHODS) if encoded.methods >> bit & 1),
        encoded.issued_at,
        encoded.expires_at,
        tuple(encoded.audit_ids),
        encoded.token_epoch,
        _decode_id(encoded.trust_id),
        _decode_id(encoded.application_credential_id),
    )


def new_audit_id() -> str:
    return urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()


# Most ids are 32 hex digits and are stored as 16 bytes. The first byte says how an id is stored.
_AS_TEXT, _AS_HEX = b"\0", b"\1"


def _encode_id(item_id: str) -> bytes:
    if len(item_id) == 32:
        try:
            raw = bytes.fromhex(item_id)
        except ValueError:
            raw = b""
        if raw.hex() == item_id:
            return _AS_HEX + raw
    return _AS_TEXT + item_id.encode()


def _decode_id(raw: bytes) -> str:
    return raw[1:].hex() if raw[:1] == _AS_HEX else raw[1:].decode()
