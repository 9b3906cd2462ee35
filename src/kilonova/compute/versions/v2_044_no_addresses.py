"""Addresses of servers are asked of the network service, and are no actions of servers any more."""

from kilonova.http.versions import Microversion, action

NAMES = ("addFixedIp", "removeFixedIp", "addFloatingIp", "removeFloatingIp")

version = Microversion("2.44", __doc__, [action(name).ends() for name in NAMES])
