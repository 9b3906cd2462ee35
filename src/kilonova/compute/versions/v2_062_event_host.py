"""Events of an action show their host: its name to administrators, a hash of it to all users."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.62", __doc__, [view("action event").gains("host", "hostId")])
