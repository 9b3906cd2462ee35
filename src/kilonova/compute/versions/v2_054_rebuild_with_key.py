"""A rebuild can give the server another keypair, or none; its answer shows which."""

from kilonova.http.versions import Microversion, action, view

version = Microversion("2.54", __doc__, [action("rebuild").gains("key_name"), view("server rebuild").gains("key_name")])
