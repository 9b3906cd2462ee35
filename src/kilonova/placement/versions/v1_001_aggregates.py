"""Providers have aggregates, which can be read and replaced."""

from kilonova.http.versions import Microversion, view

version = Microversion("1.1", __doc__, [view("provider links").gains("aggregates")])
