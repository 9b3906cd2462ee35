"""The libvirt driver: runs guests with QEMU/KVM."""
