"""Users can list the available filters."""

from kilonova.http.versions import Microversion, route

version = Microversion("3.33", __doc__, [route("GET", "/resource_filters").begins()])
