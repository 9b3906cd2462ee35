"""An unknown status in a list's filter is refused; before, nothing matched it."""

from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.38", __doc__, [behaviour("unknown status filter is refused")])
