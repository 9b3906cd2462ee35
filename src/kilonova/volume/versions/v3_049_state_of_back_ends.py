"""Services show whether their back end is up."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.49", __doc__, [view("volume service").gains("backend_state")])
