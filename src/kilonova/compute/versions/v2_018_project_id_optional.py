"""The project id in the path is optional."""

from kilonova.http.versions import Microversion

version = Microversion("2.18", __doc__, [])
