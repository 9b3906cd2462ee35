"""There are traits, and providers have them."""

from kilonova.http.versions import Microversion, view

version = Microversion("1.6", __doc__, [view("provider links").gains("traits")])
