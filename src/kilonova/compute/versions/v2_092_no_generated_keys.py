"""Key pairs are no longer generated: a public key is required. Their names may contain `@` and `.`."""

from kilonova.compute.keypairs.model import NewKeyPair
from kilonova.compute.keypairs.schemas import OLD_NAME, PUBLIC_KEY
from kilonova.http import Context
from kilonova.http.versions import Microversion, request, view
from kilonova.http.views import OMIT


def private_key(key: NewKeyPair, ctx: Context) -> object:
    """Only in the response to a creation that generates the key pair."""
    return key.private_key or OMIT


version = Microversion(
    "2.92",
    __doc__,
    [
        request("POST /os-keypairs").changes("keypair.name", before=OLD_NAME, required_before=True),
        request("POST /os-keypairs").changes("keypair.public_key", before=PUBLIC_KEY),
        view("new keypair").loses("private_key", value=private_key, schema={"type": "string"}, optional=True),
    ],
)
