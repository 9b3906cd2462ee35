"""The tiny image: a Linux of one shell script, built from the distribution's packages, to boot and to try things with.

It needs neither root nor a loop device. The kernel comes from the package manager, which downloads but does not
install it.
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
_MBR = Path("/usr/lib/syslinux/mbr/mbr.bin")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_HERE = Path(__file__).parent

_SIZE_MB = 64
_SECTOR = 512
_BOOT_AT, _BOOT_SECTORS = 2048, 49152
_ROOT_AT = _BOOT_AT + _BOOT_SECTORS
# Everything in the image bears this time, so that building it again gives the same bytes.
_TIME = 1_700_000_000

_MODULES = (
    *("virtio_pci", "virtio_blk", "virtio_net", "virtio_scsi", "sd_mod", "sr_mod", "ata_piix", "isofs", "ext4"),
    *("virtio_console", "virtio_balloon", "virtio_rng", "evdev", "button"),
)
_PARTITIONS = f"""label: dos
label-id: 0x6b696c6f
start={_BOOT_AT},size={_BOOT_SECTORS},type=6,bootable
start={_ROOT_AT},type=83
"""
_ARGUMENTS = (
    "console=tty0 console=ttyS0 quiet panic=5 mitigations=off nokaslr"
    " tsc=reliable no_timer_check cryptomgr.notests random.trust_cpu=on"
)
_BOOT = f"""DEFAULT tiny
PROMPT 0
TIMEOUT 0
LABEL tiny
 KERNEL vmlinuz
 INITRD initrd.gz
 APPEND {_ARGUMENTS}
"""
_ROOT_ID = "6b696c6f-6e6f-4000-8000-766100000001"


class CannotBuild(Exception):
    """For the operator: what lacks, or what went wrong."""


def missing() -> list[str]:
    """The packages that have to be installed first."""
    lacking = {package for tool, package in TOOLS.items() if shutil.which(tool, path=_PATH) is None}
    if not _MBR.exists():
        lacking.add("syslinux-common")
    return sorted(lacking)


def fingerprint() -> str:
    """Changes when what is built does."""
    digest = hashlib.sha256()
    for name in ("__init__.py", "init", "lease"):
        digest.update((_HERE / name).read_bytes())
    return digest.hexdigest()[:12]


def build(target: Path) -> None:
    """Write the image, as qcow2. Raises CannotBuild."""
    lacking = missing()
    if lacking:
        raise CannotBuild(f"apt install {' '.join(lacking)}")
    # Beside the target, so that whoever has given up waiting removes both.
    with tempfile.TemporaryDirectory(prefix="kilonova-tiny-", dir=target.parent) as name:
        work = Path(name)
        kernel, modules = _kernel(work)
        initrd = _initrd(work, modules)
        disk = _disk(work, kernel, initrd)
        image = work / "tiny.qcow2"
        _run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", disk, image])
        # Beside the target first: whoever sees it sees all of it.
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(image, partial)
        partial.replace(target)


def _kernel(work: Path) -> tuple[Path, Path]:
    """The kernel, and the directory of its modules."""
    depends = _run(["apt-cache", "depends", KERNEL])
    names = [line.split()[-1] for line in depends.splitlines() if line.strip().startswith("Depends:")]
    if not names:
        raise CannotBuild(f"the package manager knows no {KERNEL}; say: apt update")
    download = work / "download"
    download.mkdir()
    download.chmod(0o777)  # apt downloads as a user of its own
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
    for source, place in (("init", "init"), ("lease", "etc/lease")):
        shutil.copy(_HERE / source, root / place)
        (root / place).chmod(0o755)
    paths = sorted(root.rglob("*"))
    for path in [root, *paths]:
        os.utime(path, (_TIME, _TIME), follow_symlinks=False)
    names = "".join(f"{path.relative_to(root)}\0" for path in paths)
    archive = subprocess.run(
        ["cpio", "--null", "-o", "-H", "newc", "--reproducible", "--owner=0:0", "--quiet"],
        input=names.encode(),
        capture_output=True,
        cwd=root,
        check=True,
    ).stdout
    target = work / "initrd.gz"
    target.write_bytes(gzip.compress(archive, 9, mtime=0))
    return target


def _modules(work: Path, modules: Path, target: Path) -> list[str]:
    """Copy the drivers and what they need; their names in the order in which they load."""
    order: list[str] = []
    for module in _MODULES:
        command = ["modprobe", "-d", work / "kernel", "-S", modules.name, "--show-depends", module]
        for line in _run(command).splitlines():
            action, path, *_ = line.split()
            if action != "insmod":
                continue  # part of the kernel itself
            name = Path(path).name
            plain = name.removesuffix(".xz")
            if plain not in order:
                shutil.copy(path, target / name)
                if plain != name:
                    _run(["xz", "-d", target / name])
                order.append(plain)
    return order


def _disk(work: Path, kernel: Path, initrd: Path) -> Path:
    """A partition to boot from and one to keep things on."""
    disk = work / "disk"
    with disk.open("wb") as file:
        file.truncate(_SIZE_MB * 1024 * 1024)
    _run(["sfdisk", "-q", disk], given=_PARTITIONS)
    with disk.open("r+b") as file:
        file.write(_MBR.read_bytes()[:440])
    _run(["mkfs.fat", "-F16", "--invariant", "-n", "TINYBOOT", "--offset", _BOOT_AT, disk, _BOOT_SECTORS // 2])
    files = {"vmlinuz": kernel, "initrd.gz": initrd, "syslinux.cfg": work / "syslinux.cfg"}
    files["syslinux.cfg"].write_text(_BOOT)
    for name, source in files.items():
        os.utime(source, (_TIME, _TIME))
        _run(["mcopy", "-m", "-i", f"{disk}@@{_BOOT_AT * _SECTOR}", source, f"::{name}"])
    _run(["syslinux", "--install", "--offset", _BOOT_AT * _SECTOR, disk])
    options = f"offset={_ROOT_AT * _SECTOR},hash_seed={_ROOT_ID},root_owner=0:0"
    size = f"{_SIZE_MB * 1024 - _ROOT_AT // 2}k"
    _run(["mke2fs", "-q", "-t", "ext4", "-L", "tinyroot", "-U", _ROOT_ID, "-E", options, disk, size])
    return disk


def _run(command: Sequence[object], directory: Path | None = None, given: str | None = None) -> str:
    environment = {
        **os.environ,
        "PATH": _PATH,
        "LC_ALL": "C",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": str(_TIME),
        "E2FSPROGS_FAKE_TIME": str(_TIME),
        "MTOOLS_SKIP_CHECK": "1",
    }
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=directory, input=given, env=environment
    )
    if done.returncode:
        raise CannotBuild(f"{words[0]}: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout
