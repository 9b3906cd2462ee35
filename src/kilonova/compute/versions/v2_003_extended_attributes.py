"""Server views show administrators how the server was asked for: reservation, launch index, kernel, host name,
root device and user data.
"""

from kilonova.http.versions import Microversion, view

ATTRIBUTES = ("reservation_id", "launch_index", "ramdisk_id", "kernel_id", "hostname", "root_device_name", "user_data")

version = Microversion(
    "2.3",
    __doc__,
    [view("server", "server detail").gains(*(f"OS-EXT-SRV-ATTR:{name}" for name in ATTRIBUTES))],
)
