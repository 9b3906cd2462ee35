"""Volume-backed servers can be rescued, with an image that sets the rescue device or bus."""

from kilonova.compute.servers.actions.rescue import OF_VOLUMES
from kilonova.http.versions import Microversion

version = Microversion("2.87", __doc__, [OF_VOLUMES])
