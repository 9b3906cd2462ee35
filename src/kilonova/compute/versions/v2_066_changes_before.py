"""Lists of servers, actions and migrations can be limited to changes before a time."""

from kilonova.http.versions import Microversion, query

version = Microversion(
    "2.66",
    __doc__,
    [
        query("GET /servers").gains("changes-before"),
        query("GET /servers/detail").gains("changes-before"),
        query("GET /servers/{server_id}/os-instance-actions").gains("changes-before"),
        query("GET /os-migrations").gains("changes-before"),
    ],
)
