"""Failed events of an action show why, to administrators by default."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.84", __doc__, [view("action event").gains("details")])
