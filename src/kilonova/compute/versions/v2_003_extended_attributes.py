"""Server views show administrators the reservation, launch index, kernel, host name, root device and user data of a
server; and of every volume whether it is deleted with the server.
"""

from kilonova.compute.servers.views import volume_ids
from kilonova.http.versions import Microversion, view

ATTRIBUTES = ("reservation_id", "launch_index", "ramdisk_id", "kernel_id", "hostname", "root_device_name", "user_data")

version = Microversion(
    "2.3",
    __doc__,
    [
        view("server", "server detail").gains(*(f"OS-EXT-SRV-ATTR:{name}" for name in ATTRIBUTES)),
        view("server", "server detail").changes(
            "os-extended-volumes:volumes_attached", before=volume_ids, schema={"type": "array"}
        ),
    ],
)
