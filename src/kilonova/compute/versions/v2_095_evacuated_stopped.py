"""An evacuated server is stopped at its destination, whatever its state was."""

from kilonova.compute.servers.actions.evacuate import LEFT_STOPPED
from kilonova.http.versions import Microversion

version = Microversion("2.95", __doc__, [LEFT_STOPPED])
