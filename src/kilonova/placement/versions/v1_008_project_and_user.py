"""Allocations are written with the project and the user of the consumer."""

from kilonova.http.versions import Microversion, request

_PUT = request("PUT /allocations/{consumer_uuid}")

version = Microversion("1.8", __doc__, [_PUT.gains("project_id"), _PUT.gains("user_id")])
