"""Key pairs have a type, `ssh` or `x509`; creating one answers 201 and deleting one 204."""

from kilonova.http.versions import Microversion, answer, request, view

version = Microversion(
    "2.2",
    __doc__,
    [
        request("POST /os-keypairs").gains("keypair.type"),
        answer("POST /os-keypairs").status(before=200),
        answer("DELETE /os-keypairs/{name}").status(before=202),
        view("keypair", "new keypair", "keypair detail").gains("type"),
    ],
)
