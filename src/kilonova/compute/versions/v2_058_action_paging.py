"""Actions show when they last changed; their list is paged and can be limited to recent changes."""

from kilonova.compute.instance_actions import PAGED
from kilonova.http.versions import Microversion, query, view

version = Microversion(
    "2.58",
    __doc__,
    [
        view("action", "action in list").gains("updated_at"),
        query("GET /servers/{server_id}/os-instance-actions").gains("limit", "marker", "changes-since"),
        query("GET /servers/{server_id}/os-instance-actions").closes(),
        PAGED,
    ],
)
