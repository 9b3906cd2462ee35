"""Flavors show their extra specs to those who may see them."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.61", __doc__, [view("flavor").gains("extra_specs")])
