"""The diagnostics of a server have one form, whatever its hypervisor."""

from kilonova.compute.diagnostics.api import ONE_FORM
from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.48", __doc__, [behaviour(ONE_FORM)])
