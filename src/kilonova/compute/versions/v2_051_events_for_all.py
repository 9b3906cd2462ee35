"""Everybody who sees an action sees its events."""

from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.51", __doc__, [behaviour("events of an action are shown to all")])
