"""The request for a share takes scheduler hints, which this service refuses."""

from kilonova.http.versions import Microversion, request

version = Microversion("2.65", __doc__, [request("POST /shares").gains("share.scheduler_hints")])
