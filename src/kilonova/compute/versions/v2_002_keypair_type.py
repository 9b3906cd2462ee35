"""Key pairs have a type, `ssh` or `x509`; creating one answers 201 and deleting one 204."""

from kilonova.http.versions import Microversion, request, response, view

version = Microversion(
    "2.2",
    __doc__,
    [
        request("POST /os-keypairs").gains("keypair.type"),
        response("POST /os-keypairs").status(before=200),
        response("DELETE /os-keypairs/{name}").status(before=202),
        view("keypair", "new keypair", "keypair detail").gains("type"),
    ],
)
