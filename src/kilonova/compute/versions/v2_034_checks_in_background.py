"""A live migration is accepted first and checked then: that no host will do is told by its action, no longer by 400."""

from kilonova.compute.servers.live_migrating import CHECKED_LATER
from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.34", __doc__, [behaviour(CHECKED_LATER)])
