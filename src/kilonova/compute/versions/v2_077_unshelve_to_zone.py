"""A shelved and offloaded server can be unshelved to an `availability_zone`, which it is then pinned to."""

from kilonova.http.versions import Microversion, action

version = Microversion("2.77", __doc__, [action("unshelve").changes("", before={"type": "null"}, required_before=True)])
