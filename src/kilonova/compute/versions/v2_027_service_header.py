"""The version can also be requested by the header `OpenStack-API-Version: compute X.Y`."""

from kilonova.http.versions import Microversion

version = Microversion("2.27", __doc__, [])
