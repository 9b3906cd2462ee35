"""A rebuild can change or remove the server's key pair; its response shows the key name."""

from kilonova.http.versions import Microversion, action, view

version = Microversion("2.54", __doc__, [action("rebuild").gains("key_name"), view("server rebuild").gains("key_name")])
