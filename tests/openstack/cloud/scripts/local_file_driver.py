"""A Cinder volume driver that keeps volumes as raw files in one folder.

It needs no kernel module and no daemon, stores real bytes, and can do what a
compute service wants to test: attach (also to several servers), extend while
attached, re-image, snapshot, clone, upload to an image, migrate.

The connection it hands out is for hosts that see the folder under the same path:

    {"driver_volume_type": "local",
     "data": {"device_path": "/.../volume-<id>", "format": "raw", ...}}
"""

import os
import shutil

from cinder import exception, interface
from cinder.image import image_utils
from cinder.volume import configuration, driver, volume_utils
from oslo_concurrency import processutils
from oslo_config import cfg
from oslo_utils import units

OPTIONS = [
    cfg.StrOpt("local_file_dir", help="Folder for the volumes' files."),
]
cfg.CONF.register_opts(OPTIONS, group=configuration.SHARED_CONF_GROUP)


@interface.volumedriver
class LocalFileDriver(driver.VolumeDriver):
    VERSION = "1.0.0"
    CI_WIKI_NAME = "None"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.configuration.append_config_values(OPTIONS)
        self.folder = self.configuration.local_file_dir

    @classmethod
    def get_driver_options(cls):
        return OPTIONS

    def check_for_setup_error(self):
        if not self.folder:
            raise exception.InvalidConfigurationValue(option="local_file_dir", value=self.folder)
        os.makedirs(self.folder, exist_ok=True)

    # -- files -----------------------------------------------------------------

    def _path(self, name):
        return os.path.join(self.folder, name)

    def local_path(self, volume):
        return self._path(volume.name)

    def _resize(self, path, gigabytes):
        with open(path, "ab") as file:
            file.truncate(gigabytes * units.Gi)

    def _copy(self, source, target, gigabytes):
        # a sparse copy, a shared one where the file system can
        processutils.execute("cp", "--reflink=auto", "--sparse=always", source, target)
        self._resize(target, gigabytes)

    def _remove(self, path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    # -- volumes and snapshots ---------------------------------------------------

    def create_volume(self, volume):
        self._resize(self.local_path(volume), volume.size)

    def delete_volume(self, volume):
        self._remove(self.local_path(volume))

    def extend_volume(self, volume, new_size):
        self._resize(self.local_path(volume), new_size)

    def create_snapshot(self, snapshot):
        self._copy(self.local_path(snapshot.volume), self._path(snapshot.name), snapshot.volume_size)

    def delete_snapshot(self, snapshot):
        self._remove(self._path(snapshot.name))

    def create_volume_from_snapshot(self, volume, snapshot):
        self._copy(self._path(snapshot.name), self.local_path(volume), volume.size)

    def create_cloned_volume(self, volume, src_vref):
        self._copy(self.local_path(src_vref), self.local_path(volume), volume.size)

    def revert_to_snapshot(self, context, volume, snapshot):
        self._copy(self._path(snapshot.name), self.local_path(volume), volume.size)

    def update_migrated_volume(self, ctxt, volume, new_volume, original_volume_status):
        if original_volume_status == "available":
            os.replace(self.local_path(new_volume), self._path(f"volume-{volume.id}"))
            return {"_name_id": None, "provider_location": None}
        return {
            "_name_id": new_volume["_name_id"] or new_volume["id"],
            "provider_location": new_volume["provider_location"],
        }

    # -- images ------------------------------------------------------------------

    def clone_image(self, context, volume, image_location, image_meta, image_service):
        return None, False

    def copy_image_to_volume(self, context, volume, image_service, image_id, disable_sparse=False):
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

    def copy_volume_to_image(self, context, volume, image_service, image_meta):
        volume_utils.upload_volume(
            context, image_service, image_meta, self.local_path(volume), volume, run_as_root=False
        )

    # -- connections ---------------------------------------------------------------

    def ensure_export(self, context, volume):
        pass

    def create_export(self, context, volume, connector):
        pass

    def remove_export(self, context, volume):
        pass

    def initialize_connection(self, volume, connector):
        return {
            "driver_volume_type": "local",
            "data": {"device_path": self.local_path(volume), "format": "raw", "volume_id": volume.id, "discard": True},
        }

    def terminate_connection(self, volume, connector, **kwargs):
        pass

    # -- manage, unmanage, migrate -------------------------------------------------

    def migrate_volume(self, context, volume, host):
        return False, None

    def manage_existing(self, volume, existing_ref):
        os.replace(self._path(existing_ref["source-name"]), self.local_path(volume))

    def manage_existing_get_size(self, volume, existing_ref):
        size = os.path.getsize(self._path(existing_ref["source-name"]))
        return -(-size // units.Gi)

    def unmanage(self, volume):
        pass

    # -- capacity --------------------------------------------------------------------

    def _update_volume_stats(self):
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
