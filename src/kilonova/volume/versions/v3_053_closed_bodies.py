"""Unknown keys in the body of a new or updated volume are refused. They were ignored before."""

from kilonova.http.versions import Microversion, request
from kilonova.volume.volumes.schemas import CREATE, UPDATE, opened

version = Microversion(
    "3.53",
    __doc__,
    [
        request("POST /volumes").changes("", before=opened(CREATE, "volume")),
        request("PUT /volumes/{volume_id}").changes("", before=opened(UPDATE, "volume")),
    ],
)
