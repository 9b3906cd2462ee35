"""Allocations of several consumers can be replaced at once; empty ones are deleted."""

from kilonova.http.versions import Microversion, route

version = Microversion("1.13", __doc__, [route("POST", "/allocations").begins()])
