"""A crash dump of a server can be triggered."""

from kilonova.http.versions import Microversion, action

version = Microversion("2.17", __doc__, [action("trigger_crash_dump").begins()])
