"""A summary tells how many volumes there are, and how large they are together."""

from kilonova.http.versions import Microversion, route

version = Microversion("3.12", __doc__, [route("GET", "/volumes/summary").begins()])
