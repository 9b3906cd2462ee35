"""Providers can be filtered by their traits."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.18", __doc__, [query("GET /resource_providers").gains("required")])
