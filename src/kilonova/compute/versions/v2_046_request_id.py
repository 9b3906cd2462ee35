"""The request id is also returned as `X-OpenStack-Request-ID`, as in other services."""

from kilonova.http.versions import Microversion

version = Microversion("2.46", __doc__, [])
