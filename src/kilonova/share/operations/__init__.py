"""Operations of the share service. Importing this package registers them all."""

from kilonova.share.operations import create_share, delete_share

__all__ = ["create_share", "delete_share"]
