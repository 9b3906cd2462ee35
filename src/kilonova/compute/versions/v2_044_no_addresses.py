"""The server actions on addresses end; the network service replaces them."""

from kilonova.http.versions import Microversion, action

NAMES = ("addFixedIp", "removeFixedIp", "addFloatingIp", "removeFloatingIp")

version = Microversion("2.44", __doc__, [action(name).ends() for name in NAMES])
