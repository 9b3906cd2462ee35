"""Volumes may belong to groups and show theirs; there are no groups here."""

from kilonova.http.versions import Microversion, request, view
from kilonova.volume.volumes.schemas import ignored

version = Microversion(
    "3.13",
    __doc__,
    [
        request("POST /volumes").gains("volume.group_id", upgrade=ignored("group_id")),
        view("volume", "new volume").gains("group_id"),
    ],
)
