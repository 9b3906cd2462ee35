"""Providers can be filtered by aggregate membership."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.3", __doc__, [query("GET /resource_providers").gains("member_of")])
