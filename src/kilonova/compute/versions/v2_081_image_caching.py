"""Image caching can be requested for the hosts of an aggregate."""

from kilonova.http.versions import Microversion, route

version = Microversion("2.81", __doc__, [route("POST", "/os-aggregates/{aggregate_id}/images").begins()])
