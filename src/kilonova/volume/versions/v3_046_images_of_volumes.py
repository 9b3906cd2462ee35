"""A volume from the image of a volume-backed server is created from the snapshot that the image names."""

from kilonova.http.versions import Microversion
from kilonova.volume.volumes.create import OF_SNAPSHOT_IMAGES

version = Microversion("3.46", __doc__, [OF_SNAPSHOT_IMAGES])
