"""A live migration is accepted before it is checked: its action shows that no host is suitable, in place of a 400."""

from kilonova.compute.servers.actions.live_migrate import CHECKED_LATER
from kilonova.http.versions import Microversion

version = Microversion("2.34", __doc__, [CHECKED_LATER])
