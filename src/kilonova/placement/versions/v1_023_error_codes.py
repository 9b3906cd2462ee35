"""Errors have a code that programs can tell them apart by."""

from kilonova.http.versions import Microversion, view

version = Microversion("1.23", __doc__, [view("error").gains("code")])
