"""Operations of the volume service, one file each. Importing this package registers them all."""

from kilonova.volume.operations import delete_volume, make_volume

__all__ = ["delete_volume", "make_volume"]
