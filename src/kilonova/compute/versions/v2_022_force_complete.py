"""A running live migration can be forced to complete."""

from kilonova.http.versions import Microversion, action

AT = "/servers/{server_id}/migrations/{migration_id}/action"

version = Microversion("2.22", __doc__, [action("force_complete", AT).begins()])
