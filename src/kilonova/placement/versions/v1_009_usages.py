"""Usages of a project, or of a user in it, can be read."""

from kilonova.http.versions import Microversion, route

version = Microversion("1.9", __doc__, [route("GET", "/usages").begins()])
