"""Format checks of images: the declared format must match, and references to other files are refused."""

from __future__ import annotations

import random
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kilonova.hosts.drivers.libvirt import formats
from kilonova.hosts.drivers.libvirt.formats import UnsafeImage
from tests.hosts.libvirt.support import MIB, require_tools, run_tool

SECRET = "root:$6$secret"
# A check of 64 KiB takes milliseconds. A pattern of quadratic time would take many seconds.
MAX_CPU_SECONDS = 0.5


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_tools("qemu-img", "genisoimage")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def made(kind: str, *options: str, size: str = "4M") -> Path:
        path = tmp_path / f"image.{kind}"
        run_tool("qemu-img", "create", "-q", "-f", {"vhd": "vpc"}.get(kind, kind), *options, path, size)
        return path

    return made


def write_at(path: Path, at: int, data: bytes) -> Path:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    return path


@pytest.mark.parametrize("kind", ["raw", "qcow2", "vmdk", "vdi", "vhd", "vhdx"])
def test_image_of_the_declared_format_is_accepted(make: Callable[..., Path], kind: str) -> None:
    found = formats.check_content(make(kind), kind)
    assert found.format == kind
    assert found.virtual_size in (None, 4 * MIB)


@pytest.mark.parametrize(
    "options",
    [
        ("compat=0.10",),
        ("compat=1.1", "lazy_refcounts=on"),
        ("compression_type=zstd",),
        ("extended_l2=on", "cluster_size=64k"),
        ("cluster_size=512",),
    ],
)
def test_qcow2_variants_are_accepted(make: Callable[..., Path], options: tuple[str, ...]) -> None:
    path = make("qcow2", "-o", ",".join(options))
    assert formats.check_content(path, "qcow2").virtual_size == 4 * MIB


def test_stream_optimized_vmdk_and_fixed_vhd_are_accepted(tmp_path: Path, make: Callable[..., Path]) -> None:
    raw = make("raw")
    raw.write_bytes(b"\x55\xaa" * MIB)
    for kind, driver, option in (("vmdk", "vmdk", "subformat=streamOptimized"), ("vhd", "vpc", "subformat=fixed")):
        path = tmp_path / f"converted.{kind}"
        run_tool("qemu-img", "convert", "-f", "raw", "-O", driver, "-o", option, raw, path)
        assert formats.check_content(path, kind).format == kind


@pytest.mark.parametrize("kind", ["qcow2", "vmdk", "vdi", "vhd", "vhdx", "qed"])
@pytest.mark.parametrize("claim", ["raw", "iso", "qcow2", "vmdk"])
def test_image_of_another_format_is_refused(make: Callable[..., Path], kind: str, claim: str) -> None:
    if kind == claim:
        return
    with pytest.raises(UnsafeImage, match=kind):
        formats.check_content(make(kind), claim)


def test_luks_does_not_pass_as_raw(tmp_path: Path) -> None:
    path = tmp_path / "luks"
    path.write_bytes(b"LUKS\xba\xbe" + bytes(MIB))
    with pytest.raises(UnsafeImage, match="luks"):
        formats.check_content(path, "raw")


def test_partitioned_disk_is_raw(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.write_bytes(bytes(510) + b"\x55\xaa" + b"EFI PART" + bytes(MIB))
    assert formats.check_content(path, "raw") == formats.ImageFormat("raw", path.stat().st_size)
    with pytest.raises(UnsafeImage, match="the declared disk format is iso, but the image is raw"):
        formats.check_content(path, "iso")


def test_iso_is_detected_and_iso_with_qcow2_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("hello")
    path = tmp_path / "image.iso"
    run_tool("genisoimage", "-quiet", "-o", path, tmp_path / "tree")
    assert formats.check_content(path, "iso").format == "iso"
    assert formats.check_content(path, "raw").format == "raw"
    qcow2 = tmp_path / "evil.qcow2"
    run_tool("qemu-img", "create", "-q", "-f", "qcow2", qcow2, "4M")
    write_at(path, 0, qcow2.read_bytes()[:512])
    for claim in ("iso", "raw"):
        with pytest.raises(UnsafeImage, match="qcow2"):
            formats.check_content(path, claim)


def test_qcow2_with_backing_file_is_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET.encode().ljust(512, b"\0"))
    path = make("qcow2", "-b", str(secret), "-F", "raw")
    with pytest.raises(UnsafeImage, match="backing file"):
        formats.check_content(path, "qcow2")


def test_qcow2_with_external_data_file_is_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    path = make("qcow2", "-o", f"data_file={tmp_path / 'data'},data_file_raw=on")
    with pytest.raises(UnsafeImage, match="external data file"):
        formats.check_content(path, "qcow2")
    # The name of a data file is refused even without the feature bit.
    incompatible = struct.unpack(">Q", path.read_bytes()[72:80])[0]
    write_at(path, 72, struct.pack(">Q", incompatible & ~4))
    with pytest.raises(UnsafeImage, match="external data file"):
        formats.check_content(path, "qcow2")


def test_data_file_name_after_other_extensions_is_refused(make: Callable[..., Path]) -> None:
    path = make("qcow2")
    extensions = struct.pack(">II", 0x12345678, 5) + bytes(8)
    extensions += struct.pack(">II", 0x44415441, 8) + b"/etc/pwd" + bytes(8)
    write_at(path, struct.unpack(">I", path.read_bytes()[100:104])[0], extensions)
    with pytest.raises(UnsafeImage, match="external data file"):
        formats.check_content(path, "qcow2")


@pytest.mark.parametrize(
    "at, data, why",
    [
        (4, struct.pack(">I", 9), "version 9"),
        (20, struct.pack(">I", 40), "cluster size"),
        (32, struct.pack(">I", 1), "encrypted"),
        (72, struct.pack(">Q", 2), "corrupt"),
        (72, struct.pack(">Q", 1 << 40), "unknown features"),
        (100, struct.pack(">I", 8), "invalid length"),
        (100, struct.pack(">I", 0xFFFFFFF8), "invalid length"),
    ],
)
def test_qcow2_with_invalid_header_is_refused(make: Callable[..., Path], at: int, data: bytes, why: str) -> None:
    with pytest.raises(UnsafeImage, match=why):
        formats.check_content(write_at(make("qcow2"), at, data), "qcow2")


def test_qcow2_extension_beyond_the_header_is_refused(make: Callable[..., Path]) -> None:
    path = make("qcow2")
    length = struct.unpack(">I", path.read_bytes()[100:104])[0]
    with pytest.raises(UnsafeImage, match="extension"):
        formats.check_content(write_at(path, length, struct.pack(">II", 0x12345678, 1 << 30)), "qcow2")


@pytest.mark.parametrize("length", [0, 3, 40, 100])
def test_truncated_header_is_refused(tmp_path: Path, make: Callable[..., Path], length: int) -> None:
    path = tmp_path / "short"
    path.write_bytes(make("qcow2").read_bytes()[:length])
    with pytest.raises(UnsafeImage):
        formats.check_content(path, "qcow2")


@pytest.mark.parametrize("subformat", ["monolithicFlat", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat"])
def test_vmdk_of_several_files_is_refused(make: Callable[..., Path], subformat: str) -> None:
    path = make("vmdk", "-o", f"subformat={subformat}")
    with pytest.raises(UnsafeImage, match="other files"):
        formats.check_content(path, "vmdk")


def replace_bytes(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    head = data[:512]
    place, length = struct.unpack("<QQ", head[28:44])
    start, end = place * 512, (place + length) * 512
    descriptor = data[start:end].replace(old, new).rstrip(b"\0").ljust(length * 512, b"\0")
    return write_at(path, start, descriptor[: length * 512])


@pytest.mark.parametrize(
    "old, new",
    [
        (b'createType="monolithicSparse"', b'createType="monolithicFlat"'),
        (b'createType="monolithicSparse"', b'createType="monolithicSparse"\ncreateType="monolithicFlat"'),
        (b'createType="monolithicSparse"', b'createType="monolithicSparse"\nparentFileNameHint="/etc/shadow"'),
        (b' SPARSE "image.vmdk"', b' FLAT "/etc/shadow" 0'),
        (b' SPARSE "image.vmdk"', b' SPARSE "/etc/shadow"'),
        (b' SPARSE "image.vmdk"', b' SPARSE "image.vmdk"\nRW 8192 FLAT "/etc/shadow" 0'),
    ],
)
def test_vmdk_descriptor_with_other_files_is_refused(make: Callable[..., Path], old: bytes, new: bytes) -> None:
    with pytest.raises(UnsafeImage, match="not supported"):
        formats.check_content(replace_bytes(make("vmdk"), old, new), "vmdk")


@pytest.mark.parametrize("line", ["\n", " ", "RW\n", "RW ", "createType ", 'createType="\n', "x"])
def test_large_vmdk_descriptor_costs_little(tmp_path: Path, line: str) -> None:
    size = 1 << 16
    header = struct.pack("<4sIIQQQQ", b"KDMV", 1, 0, 8192, 128, 1, size // formats.SECTOR)
    text = (line * size)[:size].encode()
    (tmp_path / "image").write_bytes(header.ljust(formats.SECTOR, b"\0") + text)
    before = time.thread_time()
    with pytest.raises(UnsafeImage):
        formats.check_content(tmp_path / "image", "vmdk")
    assert time.thread_time() - before < MAX_CPU_SECONDS


def test_vmdk_without_data_is_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    # Without a capacity in the header QEMU reads the descriptor.
    with pytest.raises(UnsafeImage, match="other files"):
        formats.check_content(write_at(make("vmdk"), 12, bytes(8)), "vmdk")
    text = tmp_path / "text"
    text.write_text('# Disk DescriptorFile\nversion=1\ncreateType="monolithicFlat"\nRW 1 FLAT "/etc/shadow" 0\n')
    for claim in ("vmdk", "raw"):
        with pytest.raises(UnsafeImage):
            formats.check_content(text, claim)


def test_vhd_with_parent_is_refused(make: Callable[..., Path]) -> None:
    with pytest.raises(UnsafeImage, match="parent"):
        formats.check_content(write_at(make("vhd"), 60, struct.pack(">I", 4)), "vhd")


@pytest.mark.parametrize(
    "names", [("ami", "bare"), ("ploop", "bare"), ("", "bare"), ("qcow2", "ova"), ("raw", "docker")]
)
def test_unsupported_formats_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(UnsafeImage, match="not supported on this host"):
        formats.check_formats(*names)


DRIVERS = {"qcow2": "qcow2", "vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx"}


def test_accepted_random_headers_refer_to_no_other_file(tmp_path: Path, make: Callable[..., Path]) -> None:
    """Change headers at random, and check with qemu-img that accepted images refer to no other file."""
    rng = random.Random(20261115)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(MIB))
    seeds = [(kind, make(kind).read_bytes()) for kind in DRIVERS]
    seeds.append(("qcow2", make("qcow2", "-b", str(secret), "-F", "raw").read_bytes()))
    seeds.append(("qcow2", make("qcow2", "-o", f"data_file={tmp_path / 'data'}").read_bytes()))
    passed = 0
    for _ in range(250):
        kind, content = rng.choice(seeds)
        changed = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            at, length = rng.randrange(min(1024, len(content))), rng.choice([1, 4, 8])
            changed[at : at + length] = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])
        path = tmp_path / "changed"
        path.write_bytes(changed)
        try:
            formats.check_content(path, kind)
        except UnsafeImage:
            continue
        passed += 1
        if passed % 3 == 0:  # qemu-img is slow
            assert secret.name not in qemu_img_info(path, DRIVERS[kind])
    assert passed > 30


def qemu_img_info(path: Path, driver: str) -> str:
    """The output of `qemu-img info`; empty if it fails."""
    command = ["prlimit", "--as=1073741824", "--cpu=30", "--", "qemu-img", "info", "-f", driver, path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60)
    assert "backing file" not in done.stdout
    assert "data file:" not in done.stdout
    return done.stdout
