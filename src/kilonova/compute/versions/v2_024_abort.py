"""A running live migration can be aborted."""

from kilonova.http.versions import Microversion, route

version = Microversion("2.24", __doc__, [route("DELETE", "/servers/{server_id}/migrations/{migration_id}").begins()])
