"""A server that has left its host is unshelved to an `availability_zone`, which it is pinned to from then on."""

from kilonova.http.versions import Microversion, action

version = Microversion("2.77", __doc__, [action("unshelve").changes("", before={"type": "null"}, required_before=True)])
