"""The summary of volumes shows their metadata."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.36", __doc__, [view("volume summary").gains("metadata")])
