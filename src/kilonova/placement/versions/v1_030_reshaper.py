"""Inventories and allocations can be moved between providers atomically."""

from kilonova.http.versions import Microversion, route

version = Microversion("1.30", __doc__, [route("POST", "/reshaper").begins()])
