"""Volumes can be created from backups. Backups are not supported."""

from kilonova.http.versions import Microversion, request
from kilonova.volume.volumes.schemas import ignored

version = Microversion(
    "3.47", __doc__, [request("POST /volumes").gains("volume.backup_id", upgrade=ignored("backup_id"))]
)
