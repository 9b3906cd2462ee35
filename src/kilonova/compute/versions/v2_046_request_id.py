"""The request id also comes back as `X-OpenStack-Request-ID`, as in the other services."""

from kilonova.http.versions import Microversion

version = Microversion("2.46", __doc__, [])
