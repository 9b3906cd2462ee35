"""Unknown keys in the body of a new or changed volume are refused; they were passed over before."""

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
