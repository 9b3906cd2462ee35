"""A server's system can be made to write a dump of itself."""

from kilonova.http.versions import Microversion, action

version = Microversion("2.17", __doc__, [action("trigger_crash_dump").begins()])
