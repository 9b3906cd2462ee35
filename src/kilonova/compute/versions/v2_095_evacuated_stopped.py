"""An evacuated server is left stopped at its destination, whatever it was before."""

from kilonova.compute.servers.evacuating import LEFT_STOPPED
from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.95", __doc__, [behaviour(LEFT_STOPPED)])
