"""Allocation candidates tell which providers serve which group."""

from kilonova.http.versions import Microversion, view

version = Microversion("1.34", __doc__, [view("allocation request").gains("mappings")])
