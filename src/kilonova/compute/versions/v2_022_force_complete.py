"""A live migration that is running can be made to end now."""

from kilonova.http.versions import Microversion, action

AT = "/servers/{server_id}/migrations/{migration_id}/action"

version = Microversion("2.22", __doc__, [action("force_complete", AT).begins()])
