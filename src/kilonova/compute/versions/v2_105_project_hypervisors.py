"""Reserved: project admins list the hypervisors of their own aggregates and boot on one."""

from kilonova.http.versions import Microversion

version = Microversion("2.105", __doc__, [])
