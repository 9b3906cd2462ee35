"""The hosts of an aggregate can be asked to have images at hand before servers need them."""

from kilonova.http.versions import Microversion, route

version = Microversion("2.81", __doc__, [route("POST", "/os-aggregates/{aggregate_id}/images").begins()])
