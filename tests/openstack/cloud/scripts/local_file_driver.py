"""A volume driver of Cinder that keeps volumes as raw files in one directory.

It needs no kernel module and no daemon, and stores real bytes. Its connections are for hosts that have the directory at
the same path:

    {"driver_volume_type": "local", "data": {"device_path": "/…/volume-ID", "format": "raw", …}}

Managing and migrating volumes is not tested. This runs in the environment of OpenStack.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from cinder import exception, interface
from cinder.image import image_utils
from cinder.volume import configuration, driver, volume_utils
from oslo_concurrency import processutils
from oslo_config import cfg
from oslo_utils import units

OPTIONS: list[cfg.Opt] = [cfg.StrOpt("local_file_dir", help="Directory for the files of volumes.")]
cfg.CONF.register_opts(OPTIONS, group=configuration.SHARED_CONF_GROUP)


@interface.volumedriver
class LocalFileDriver(driver.VolumeDriver):  # type: ignore[misc]
    VERSION = "1.0.0"
    CI_WIKI_NAME = "None"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.configuration.append_config_values(OPTIONS)
        self.folder = self.configuration.local_file_dir

    @classmethod
    def get_driver_options(cls) -> list[cfg.Opt]:
        return OPTIONS

    def check_for_setup_error(self) -> None:
        if not self.folder:
            raise exception.InvalidConfigurationValue(option="local_file_dir", value=self.folder)
        os.makedirs(self.folder, exist_ok=True)

    # -- Files

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def local_path(self, volume: Any) -> str:
        return self._path(volume.name)

    def _resize(self, path: str, gigabytes: int) -> None:
        with open(path, "ab") as file:
            file.truncate(gigabytes * units.Gi)

    def _copy(self, source: str, target: str, gigabytes: int) -> None:
        # a sparse copy, a shared one where the file system can
        processutils.execute("cp", "--reflink=auto", "--sparse=always", source, target)
        self._resize(target, gigabytes)

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    # -- Volumes and snapshots

    def create_volume(self, volume: Any) -> None:
        self._resize(self.local_path(volume), volume.size)

    def delete_volume(self, volume: Any) -> None:
        self._remove(self.local_path(volume))

    def extend_volume(self, volume: Any, new_size: int) -> None:
        self._resize(self.local_path(volume), new_size)

    def create_snapshot(self, snapshot: Any) -> None:
        self._copy(self.local_path(snapshot.volume), self._path(snapshot.name), snapshot.volume_size)

    def delete_snapshot(self, snapshot: Any) -> None:
        self._remove(self._path(snapshot.name))

    def create_volume_from_snapshot(self, volume: Any, snapshot: Any) -> None:
        self._copy(self._path(snapshot.name), self.local_path(volume), volume.size)

    def create_cloned_volume(self, volume: Any, src_vref: Any) -> None:
        self._copy(self.local_path(src_vref), self.local_path(volume), volume.size)

    def revert_to_snapshot(self, context: Any, volume: Any, snapshot: Any) -> None:
        self._copy(self._path(snapshot.name), self.local_path(volume), volume.size)

    def update_migrated_volume(
        self, ctxt: Any, volume: Any, new_volume: Any, original_volume_status: str
    ) -> dict[str, Any]:
        if original_volume_status == "available":
            os.replace(self.local_path(new_volume), self._path(f"volume-{volume.id}"))
            return {"_name_id": None, "provider_location": None}
        return {
            "_name_id": new_volume["_name_id"] or new_volume["id"],
            "provider_location": new_volume["provider_location"],
        }

    # -- Images

    def clone_image(
        self, context: Any, volume: Any, image_location: Any, image_meta: Any, image_service: Any
    ) -> tuple[None, bool]:
        return None, False

    def copy_image_to_volume(
        self, context: Any, volume: Any, image_service: Any, image_id: str, disable_sparse: bool = False
    ) -> None:
        # Fetched beside the volume and then put in its place: the guest of a
        # re-imaged volume never sees half an image, nor old bytes behind it.
        fresh = self.local_path(volume) + ".fetch"
        self._resize(fresh, volume.size)
        try:
            image_utils.fetch_to_raw(
                context,
                image_service,
                image_id,
                fresh,
                self.configuration.volume_dd_blocksize,
                size=volume.size,
                run_as_root=False,
                disable_sparse=disable_sparse,
            )
            self._resize(fresh, volume.size)
            os.replace(fresh, self.local_path(volume))
        finally:
            self._remove(fresh)

    def copy_volume_to_image(self, context: Any, volume: Any, image_service: Any, image_meta: Any) -> None:
        volume_utils.upload_volume(
            context, image_service, image_meta, self.local_path(volume), volume, run_as_root=False
        )

    # -- Connections

    def ensure_export(self, context: Any, volume: Any) -> None:
        pass

    def create_export(self, context: Any, volume: Any, connector: Any) -> None:
        pass

    def remove_export(self, context: Any, volume: Any) -> None:
        pass

    def initialize_connection(self, volume: Any, connector: Any) -> dict[str, Any]:
        return {
            "driver_volume_type": "local",
            "data": {"device_path": self.local_path(volume), "format": "raw", "volume_id": volume.id, "discard": True},
        }

    def terminate_connection(self, volume: Any, connector: Any, **kwargs: Any) -> None:
        pass

    # -- Manage, unmanage, migrate

    def migrate_volume(self, context: Any, volume: Any, host: Any) -> tuple[bool, None]:
        return False, None

    def manage_existing(self, volume: Any, existing_ref: Any) -> None:
        os.replace(self._path(existing_ref["source-name"]), self.local_path(volume))

    def manage_existing_get_size(self, volume: Any, existing_ref: Any) -> int:
        size = os.path.getsize(self._path(existing_ref["source-name"]))
        return -(-size // units.Gi)

    def unmanage(self, volume: Any) -> None:
        pass

    # -- Capacity

    def _update_volume_stats(self) -> None:
        disk = shutil.disk_usage(self.folder)
        self._stats = {
            "volume_backend_name": self.configuration.safe_get("volume_backend_name"),
            "vendor_name": "Kilonova tests",
            "driver_version": self.VERSION,
            "storage_protocol": "local",
            "total_capacity_gb": disk.total // units.Gi,
            "free_capacity_gb": disk.free // units.Gi,
            "reserved_percentage": 0,
            "thin_provisioning_support": True,
            "thick_provisioning_support": False,
            "max_over_subscription_ratio": "20",
            "provisioned_capacity_gb": 0,
            "multiattach": True,
            "online_extend_support": True,
            "QoS_support": False,
        }
