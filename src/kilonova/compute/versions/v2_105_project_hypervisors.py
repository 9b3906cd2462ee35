"""Reserved: project admins list the hypervisors of their own aggregates and boot on one.

Migrations show the reason of their failure.
"""

from kilonova.http.versions import Microversion, view

version = Microversion("2.105", __doc__, [view("migration").gains("reason")])
