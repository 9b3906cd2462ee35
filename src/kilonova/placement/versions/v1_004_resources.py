"""Providers can be filtered by the resources that they can still allocate."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.4", __doc__, [query("GET /resource_providers").gains("resources")])
