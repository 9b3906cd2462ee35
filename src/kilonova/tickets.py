"""Tickets: signed permissions for one thing, for a short time, that are of no use for anything else.

A ticket is its content and a signature. Whoever has the same keys can check a ticket without a record of it. The text
of a ticket is a secret: it belongs in a header and never in a URL or a log.

    tickets = Tickets("image", ImageTicket, key_source)
    text = tickets.issue(ImageTicket(…), seconds=600)
    content = tickets.check(text)      # raises InvalidTicket, ExpiredTicket
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from kilonova import clock

if TYPE_CHECKING:
    from kilonova.identity.token_keys import KeySource

HEADER = "X-Kilonova-Ticket"

T = TypeVar("T")

_KEY_BYTES = 32


class InvalidTicket(Exception):
    """The text is not a ticket of this kind that one of the keys has signed."""


class ExpiredTicket(Exception):
    """The ticket was valid. Its holder needs a new one."""


class _Signed(msgspec.Struct, Generic[T], frozen=True):
    expires_at: float
    content: T


class Tickets(Generic[T]):
    """Issues and checks the tickets of one kind. `content` is the struct that says what a ticket permits.

    The signing keys are derived from those of `source` and the kind. So a ticket is neither a ticket of another kind
    nor a token, and processes that share token keys share these keys too.
    """

    def __init__(self, kind: str, content: type[T], source: KeySource) -> None:
        self._kind = kind
        self._source = source
        self._keys: list[bytes] = []
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[_Signed[T]] = msgspec.json.Decoder(_Signed[content])  # type: ignore[valid-type]

    def issue(self, content: T, seconds: float) -> str:
        """A ticket for the content that expires after so many seconds, signed with the newest key."""
        payload = self._encoder.encode(_Signed(clock.now() + seconds, content))
        return f"{_encode(payload)}.{_encode(_sign(self._current_keys()[0], payload))}"

    def check(self, text: str) -> T:
        """The content of a valid ticket. Raises InvalidTicket or ExpiredTicket."""
        first, _, second = text.partition(".")
        payload, signature = _decode(first), _decode(second)
        expected = [_sign(key, payload) for key in self._current_keys()]
        if not any(hmac.compare_digest(one, signature) for one in expected):
            raise InvalidTicket("the signature is wrong")
        try:
            signed = self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise InvalidTicket(f"of another release: {error}") from None
        if clock.now() >= signed.expires_at:
            raise ExpiredTicket("the ticket has expired")
        return signed.content

    def _current_keys(self) -> list[bytes]:
        if not self._keys or self._source.changed():
            self._keys = derive_keys(self._source.read(), self._kind)
        return self._keys


def derive_keys(secrets: Sequence[str], kind: str) -> list[bytes]:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    label = f"kilonova ticket {kind}".encode()
    return [HKDF(SHA256(), _KEY_BYTES, salt=None, info=label).derive(secret.encode()) for secret in secrets]


def _sign(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, payload, hashlib.sha256)


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Refuse also other spellings of the same bytes, so that a ticket has one text."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise InvalidTicket("not a ticket") from None
    if _encode(data) != text:
        raise InvalidTicket("not a ticket")
    return data
