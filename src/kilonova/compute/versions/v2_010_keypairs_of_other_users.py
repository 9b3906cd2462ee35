"""Key pairs of another user can be listed, shown, created and deleted with `user_id`."""

from kilonova.http.versions import Microversion, query, request

version = Microversion(
    "2.10",
    __doc__,
    [
        request("POST /os-keypairs").gains("keypair.user_id"),
        query("GET /os-keypairs").gains("user_id"),
        query("GET /os-keypairs/{name}").gains("user_id"),
        query("DELETE /os-keypairs/{name}").gains("user_id"),
    ],
)
