"""A summary shows the number and the total size of volumes."""

from kilonova.http.versions import Microversion, route

version = Microversion("3.12", __doc__, [route("GET", "/volumes/summary").begins()])
