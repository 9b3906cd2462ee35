"""The driver of real guests: QEMU by libvirt."""
