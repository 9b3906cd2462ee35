"""Providers link to their allocations."""

from kilonova.http.versions import Microversion, view

version = Microversion("1.11", __doc__, [view("provider links").gains("allocations")])
