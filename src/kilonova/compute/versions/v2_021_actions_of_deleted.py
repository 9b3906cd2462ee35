"""The actions of a deleted server can be seen."""

from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.21", __doc__, [behaviour("actions of deleted servers are shown")])
