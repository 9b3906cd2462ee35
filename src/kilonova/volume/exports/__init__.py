"""NBD exports of volumes: one qemu-storage-daemon serves the volume files to hosts with real guests."""
