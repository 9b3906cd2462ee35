"""Services show the state of their back end."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.49", __doc__, [view("volume service").gains("backend_state")])
