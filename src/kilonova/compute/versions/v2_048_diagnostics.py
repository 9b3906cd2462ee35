"""The diagnostics of a server have one format for all hypervisors."""

from kilonova.compute.diagnostics import ONE_FORM
from kilonova.http.versions import Microversion

version = Microversion("2.48", __doc__, [ONE_FORM])
