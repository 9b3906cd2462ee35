"""Server views show the flavor as it was when the server was created, instead of a link."""

from kilonova.compute.servers.views import OBJECT, flavor_link
from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.47",
    __doc__,
    [
        view("server", "server detail", "server update", "server rebuild").changes(
            "flavor", before=flavor_link, schema=OBJECT
        )
    ],
)
