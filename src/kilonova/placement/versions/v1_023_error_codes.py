"""Errors have a machine-readable code."""

from kilonova.http.versions import Microversion, view

version = Microversion("1.23", __doc__, [view("error").gains("code")])
