"""Flavors show their extra specs, if the policy allows it."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.61", __doc__, [view("flavor").gains("extra_specs")])
