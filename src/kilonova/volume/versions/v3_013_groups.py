"""Volumes can have a group and show it. Groups are not supported."""

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
