"""Volumes that are created for a new server can have a type."""

from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.67", __doc__, [request("POST /servers").gains("server.block_device_mapping_v2[].volume_type")]
)
