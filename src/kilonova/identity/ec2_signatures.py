"""Signatures of requests with EC2 credentials, as AWS describes them: versions 2 and 4, and those of S3."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from kilonova import clock
from kilonova.http.errors import BadRequest

V4 = "AWS4-HMAC-SHA256"
_SCOPE_PARTS = 4


class SignedRequest(NamedTuple):
    """The request that a client has signed. Names of headers are in lower case."""

    verb: str
    host: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body_hash: str

    def signature(self, secret: str) -> str:
        """The signature that the request has if the secret is right. Raises BadRequest for other versions."""
        if self._is_v2():
            return self._signature_2(secret)
        if self._is_v4():
            return self._signature_4(secret)
        raise BadRequest(f"Expecting a signature of version 2, or of version 4 ({V4}).")

    def signed_at(self) -> float | None:
        """The signed time. Raises BadRequest if the time does not have the form of its version.

        Version 2 may be without a time: Heat's alarm URLs are valid as long as their credential. The time is signed, so
        nobody else can remove it.
        """
        text = self.params.get("Timestamp") if self._is_v2() else self._date()
        if text is None:
            return None
        try:
            return clock.parse(text)
        except ValueError:
            raise BadRequest(f"'{text[:40]}' is not the time of a signed request.") from None

    def _is_v2(self) -> bool:
        """A request of version 2 may have headers of version 4, which its signature does not protect."""
        return self.params.get("SignatureVersion") == "2"

    def _is_v4(self) -> bool:
        return V4 in (self.headers.get("authorization", "")[: len(V4)], self.params.get("X-Amz-Algorithm"))

    def _date(self) -> str:
        return self.headers.get("x-amz-date") or self.params.get("X-Amz-Date") or ""

    def _signature_2(self, secret: str) -> str:
        if self.params.get("SignatureMethod") != "HmacSHA256":
            raise BadRequest("SignatureMethod: HmacSHA256 is expected.")
        text = "\n".join((self.verb, self.host, self.path, _canonical_query(self.params)))
        return b64encode(_hmac(secret.encode(), text)).decode()

    def _signature_4(self, secret: str) -> str:
        names, scope = self._of_v4("SignedHeaders"), self._of_v4("Credential").partition("/")[2]
        headers = {**self.headers, "host": self.headers.get("host", self.host)}
        lines = [f"{name}:{headers[name].strip()}" for name in names.split(";") if name in headers]
        # A POST has its parameters in the body.
        query = "" if self.verb.upper() == "POST" else _canonical_query(self.params)
        canonical = "\n".join((self.verb.upper(), self.path, query, *lines, "", names, self.body_hash))
        return sign_4(secret, self._date(), scope, hashlib.sha256(canonical.encode()).hexdigest())

    def _of_v4(self, name: str) -> str:
        """A part of the header Authorization, or the parameter of the query with this name."""
        header = self.headers.get("authorization")
        if header is None:
            return self.params.get(f"X-Amz-{name}") or ""
        return header.partition(f"{name}=")[2].partition(",")[0].strip()


def sign_4(secret: str, date: str, scope: str, content_hash: str) -> str:
    """`scope` is `DAY/REGION/SERVICE/aws4_request`."""
    parts = scope.split("/")
    if len(parts) != _SCOPE_PARTS:
        raise BadRequest("The credential scope is not of the form DAY/REGION/SERVICE/aws4_request.")
    if not parts[0] or not date.startswith(parts[0]):
        raise BadRequest("The time of the signed request and the day of its credential scope differ.")
    key = f"AWS4{secret}".encode()
    for part in parts:
        key = _hmac(key, part)
    return _hmac(key, "\n".join((V4, date, scope, content_hash))).hex()


def s3_signature(secret: str, string_to_sign: bytes) -> str:
    """The signature of an S3 request. The service that received it has built the string."""
    text = string_to_sign.decode("utf-8", "replace")
    if not text.startswith(V4):
        return b64encode(hmac.digest(secret.encode(), string_to_sign, hashlib.sha1)).decode()
    _, date, scope, content_hash = [*text.split("\n"), "", "", ""][:4]
    return sign_4(secret, date, scope, content_hash)


def decode_token(text: str) -> bytes:
    """The string to sign of an S3 request, from base64 of either alphabet."""
    try:
        return b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        raise BadRequest("token: base64 is expected.") from None


def _canonical_query(params: Mapping[str, str]) -> str:
    signed = sorted((name, value) for name, value in params.items() if name not in ("Signature", "X-Amz-Signature"))
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in signed)


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), hashlib.sha256)
