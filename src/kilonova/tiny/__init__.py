"""Builds the tiny image: a minimal Linux for tests and demonstrations, from the distribution's packages.

The build needs neither root nor a loop device. It downloads the kernel's package and does not install it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

KERNEL = "linux-image-cloud-amd64"
TOOLS = {
    "apt-get": "apt",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "depmod": "kmod",
    "dpkg-deb": "dpkg",
    "mcopy": "mtools",
    "mke2fs": "e2fsprogs",
    "mkfs.fat": "dosfstools",
    "qemu-img": "qemu-utils",
    "sfdisk": "fdisk",
    "syslinux": "syslinux",
    "xz": "xz-utils",
}
_MBR_FILE = Path("/usr/lib/syslinux/mbr/mbr.bin")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_HERE = Path(__file__).parent

_SIZE_MB = 64
_SECTOR_BYTES = 512
_BOOT_START_SECTOR, _BOOT_SECTORS = 2048, 49152
_ROOT_START_SECTOR = _BOOT_START_SECTOR + _BOOT_SECTORS
# Timestamp of everything in the image, so that builds are reproducible.
_BUILD_TIME = 1_700_000_000

_MODULES = (
    *("virtio_pci", "virtio_blk", "virtio_net", "virtio_scsi", "sd_mod", "sr_mod", "ata_piix", "isofs", "ext4"),
    *("virtio_console", "virtio_balloon", "virtio_rng", "virtiofs", "evdev", "button"),
)
_PARTITIONS = f"""label: dos
label-id: 0x6b696c6f
start={_BOOT_START_SECTOR},size={_BOOT_SECTORS},type=6,bootable
start={_ROOT_START_SECTOR},type=83
"""
_KERNEL_ARGUMENTS = (
    "console=tty0 console=ttyS0 quiet panic=5 mitigations=off nokaslr"
    " tsc=reliable no_timer_check cryptomgr.notests random.trust_cpu=on"
)
_SYSLINUX_CONFIG = f"""DEFAULT tiny
PROMPT 0
TIMEOUT 0
LABEL tiny
 KERNEL vmlinuz
 INITRD initrd.gz
 APPEND {_KERNEL_ARGUMENTS}
"""
_ROOT_UUID = "6b696c6f-6e6f-4000-8000-766100000001"


class CannotBuild(Exception):
    """The image cannot be built. The text is for the operator."""


def missing_packages() -> list[str]:
    packages = {package for tool, package in TOOLS.items() if shutil.which(tool, path=_PATH) is None}
    if not _MBR_FILE.exists():
        packages.add("syslinux-common")
    return sorted(packages)


def fingerprint() -> str:
    """Return a hash of the sources that the image is built from."""
    digest = hashlib.sha256()
    for name in ("__init__.py", "init", "lease"):
        digest.update((_HERE / name).read_bytes())
    return digest.hexdigest()[:12]


def build(target: Path) -> None:
    """Write the image, as qcow2. Raises CannotBuild."""
    missing = missing_packages()
    if missing:
        raise CannotBuild(f"apt install {' '.join(missing)}")
    # In the target's directory: a caller that gives up waiting removes both with that directory.
    with tempfile.TemporaryDirectory(prefix="kilonova-tiny-", dir=target.parent) as name:
        work = Path(name)
        kernel, modules = _kernel(work)
        initrd = _initrd(work, modules)
        disk = _disk(work, kernel, initrd)
        image = work / "tiny.qcow2"
        _run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", disk, image])
        # Renamed into place, so that the target is always complete.
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(image, partial)
        partial.replace(target)


def _kernel(work: Path) -> tuple[Path, Path]:
    """Download the kernel. Return its path and the directory of its modules."""
    depends = _run(["apt-cache", "depends", KERNEL])
    names = [line.split()[-1] for line in depends.splitlines() if line.strip().startswith("Depends:")]
    if not names:
        raise CannotBuild(f"the package manager does not know {KERNEL}; run: apt update")
    download = work / "download"
    download.mkdir()
    download.chmod(0o777)  # apt downloads as its own user
    work.chmod(0o755)
    _run(["apt-get", "download", "-q", names[0]], download)
    package = next(download.glob("*.deb"))
    _run(["dpkg-deb", "-x", package, work / "kernel"])
    version = next((work / "kernel/lib/modules").iterdir()).name
    _run(["depmod", "-b", work / "kernel", version])
    return work / f"kernel/boot/vmlinuz-{version}", work / f"kernel/lib/modules/{version}"


def _initrd(work: Path, modules: Path) -> Path:
    root = work / "root"
    for name in ("bin", "config", "dev", "etc", "modules", "proc", "root", "run", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox", path=_PATH)), root / "bin/busybox")
    for applet in _run(["busybox", "--list"]).split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    order = _modules(work, modules, root / "modules")
    (root / "modules/order").write_text("".join(f"{name}\n" for name in order))
    for source, target in (("init", "init"), ("lease", "etc/lease")):
        shutil.copy(_HERE / source, root / target)
        (root / target).chmod(0o755)
    paths = sorted(root.rglob("*"))
    for path in [root, *paths]:
        os.utime(path, (_BUILD_TIME, _BUILD_TIME), follow_symlinks=False)
    names = "".join(f"{path.relative_to(root)}\0" for path in paths)
    archive = subprocess.run(
        ["cpio", "--null", "-o", "-H", "newc", "--reproducible", "--owner=0:0", "--quiet"],
        input=names.encode(),
        capture_output=True,
        cwd=root,
        check=True,
    ).stdout
    initrd = work / "initrd.gz"
    initrd.write_bytes(gzip.compress(archive, 9, mtime=0))
    return initrd


def _modules(work: Path, modules: Path, target: Path) -> list[str]:
    """Copy the kernel modules and their dependencies. Return their names in load order."""
    order: list[str] = []
    for module in _MODULES:
        command = ["modprobe", "-d", work / "kernel", "-S", modules.name, "--show-depends", module]
        for line in _run(command).splitlines():
            action, path, *_ = line.split()
            if action != "insmod":
                continue  # built into the kernel
            name = Path(path).name
            unpacked = name.removesuffix(".xz")
            if unpacked not in order:
                shutil.copy(path, target / name)
                if unpacked != name:
                    _run(["xz", "-d", target / name])
                order.append(unpacked)
    return order


def _disk(work: Path, kernel: Path, initrd: Path) -> Path:
    """Write a raw disk with a boot partition and an empty root partition."""
    disk = work / "disk"
    with disk.open("wb") as file:
        file.truncate(_SIZE_MB * 1024 * 1024)
    _run(["sfdisk", "-q", disk], stdin=_PARTITIONS)
    with disk.open("r+b") as file:
        file.write(_MBR_FILE.read_bytes()[:440])
    _run(
        ["mkfs.fat", "-F16", "--invariant", "-n", "TINYBOOT", "--offset", _BOOT_START_SECTOR, disk, _BOOT_SECTORS // 2]
    )
    files = {"vmlinuz": kernel, "initrd.gz": initrd, "syslinux.cfg": work / "syslinux.cfg"}
    files["syslinux.cfg"].write_text(_SYSLINUX_CONFIG)
    for name, source in files.items():
        os.utime(source, (_BUILD_TIME, _BUILD_TIME))
        _run(["mcopy", "-m", "-i", f"{disk}@@{_BOOT_START_SECTOR * _SECTOR_BYTES}", source, f"::{name}"])
    _run(["syslinux", "--install", "--offset", _BOOT_START_SECTOR * _SECTOR_BYTES, disk])
    options = f"offset={_ROOT_START_SECTOR * _SECTOR_BYTES},hash_seed={_ROOT_UUID},root_owner=0:0"
    size = f"{_SIZE_MB * 1024 - _ROOT_START_SECTOR // 2}k"
    _run(["mke2fs", "-q", "-t", "ext4", "-L", "tinyroot", "-U", _ROOT_UUID, "-E", options, disk, size])
    return disk


def _run(command: Sequence[object], directory: Path | None = None, stdin: str | None = None) -> str:
    environment = {
        **os.environ,
        "PATH": _PATH,
        "LC_ALL": "C",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": str(_BUILD_TIME),
        "E2FSPROGS_FAKE_TIME": str(_BUILD_TIME),
        "MTOOLS_SKIP_CHECK": "1",
    }
    arguments = [str(argument) for argument in command]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, cwd=directory, input=stdin, env=environment
    )
    if done.returncode:
        raise CannotBuild(f"{arguments[0]}: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout
