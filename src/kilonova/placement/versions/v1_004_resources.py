"""Providers can be listed by what they could still give."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.4", __doc__, [query("GET /resource_providers").gains("resources")])
