"""HTTP errors. Each API formats them in its own way."""

from __future__ import annotations

from collections.abc import Mapping


class HttpError(Exception):
    """An error response. `message` is shown to the caller."""

    status = 500
    title = "Internal Server Error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.headers = dict(headers or {})
        if status is not None and status != self.status:
            self.status = status
            self.title = TITLES.get(status, "Error")


class BadRequest(HttpError):
    status, title = 400, "Bad Request"


class Unauthorized(HttpError):
    status, title = 401, "Unauthorized"


class Forbidden(HttpError):
    status, title = 403, "Forbidden"


class NotFound(HttpError):
    status, title = 404, "Not Found"


class MethodNotAllowed(HttpError):
    status, title = 405, "Method Not Allowed"


class NotAcceptable(HttpError):
    status, title = 406, "Not Acceptable"


class VersionNotAcceptable(NotAcceptable):
    """The requested microversion is not supported."""


class RequestTimeout(HttpError):
    status, title = 408, "Request Timeout"


class Conflict(HttpError):
    status, title = 409, "Conflict"


class Gone(HttpError):
    status, title = 410, "Gone"


class TooLarge(HttpError):
    status, title = 413, "Request Entity Too Large"


class UnsupportedMediaType(HttpError):
    status, title = 415, "Unsupported Media Type"


class TooManyRequests(HttpError):
    status, title = 429, "Too Many Requests"


class NotSupported(HttpError):
    status, title = 501, "Not Implemented"


class Unavailable(HttpError):
    status, title = 503, "Service Unavailable"


_KINDS: list[type[HttpError]] = [HttpError, *HttpError.__subclasses__()]
TITLES = {kind.status: kind.title for kind in _KINDS}
