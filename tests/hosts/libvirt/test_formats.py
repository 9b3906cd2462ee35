"""Images are what they are said to be, and lead nowhere else."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kilonova.hosts.drivers.libvirt import formats
from kilonova.hosts.drivers.libvirt.formats import Unsafe
from tests.hosts.libvirt.support import MIB, do, need

SECRET = "root:$6$secret"


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("qemu-img", "genisoimage")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def made(kind: str, *options: str, size: str = "4M") -> Path:
        path = tmp_path / f"image.{kind}"
        do("qemu-img", "create", "-q", "-f", {"vhd": "vpc"}.get(kind, kind), *options, path, size)
        return path

    return made


def patched(path: Path, at: int, data: bytes) -> Path:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    return path


@pytest.mark.parametrize("kind", ["raw", "qcow2", "vmdk", "vdi", "vhd", "vhdx"])
def test_an_honest_image_passes(make: Callable[..., Path], kind: str) -> None:
    found = formats.check(make(kind), kind)
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
def test_an_ordinary_qcow2_of_any_kind_passes(make: Callable[..., Path], options: tuple[str, ...]) -> None:
    path = make("qcow2", "-o", ",".join(options))
    assert formats.check(path, "qcow2").virtual_size == 4 * MIB


def test_a_streamed_vmdk_and_a_fixed_vhd_pass(tmp_path: Path, make: Callable[..., Path]) -> None:
    raw = make("raw")
    raw.write_bytes(b"\x55\xaa" * MIB)
    for kind, driver, option in (("vmdk", "vmdk", "subformat=streamOptimized"), ("vhd", "vpc", "subformat=fixed")):
        path = tmp_path / f"converted.{kind}"
        do("qemu-img", "convert", "-f", "raw", "-O", driver, "-o", option, raw, path)
        assert formats.check(path, kind).format == kind


@pytest.mark.parametrize("kind", ["qcow2", "vmdk", "vdi", "vhd", "vhdx", "qed"])
@pytest.mark.parametrize("claim", ["raw", "iso", "qcow2", "vmdk"])
def test_what_claims_to_be_something_else_is_refused(make: Callable[..., Path], kind: str, claim: str) -> None:
    if kind == claim:
        return
    with pytest.raises(Unsafe, match=kind):
        formats.check(make(kind), claim)


def test_a_luks_is_not_raw(tmp_path: Path) -> None:
    path = tmp_path / "luks"
    path.write_bytes(b"LUKS\xba\xbe" + bytes(MIB))
    with pytest.raises(Unsafe, match="luks"):
        formats.check(path, "raw")


def test_a_partitioned_disk_is_raw(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.write_bytes(bytes(510) + b"\x55\xaa" + b"EFI PART" + bytes(MIB))
    assert formats.check(path, "raw") == formats.Found("raw", path.stat().st_size)
    with pytest.raises(Unsafe, match="not iso"):
        formats.check(path, "iso")


def test_an_iso_is_known_and_one_with_two_faces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("hello")
    path = tmp_path / "image.iso"
    do("genisoimage", "-quiet", "-o", path, tmp_path / "tree")
    assert formats.check(path, "iso").format == "iso"
    assert formats.check(path, "raw").format == "raw"
    qcow2 = tmp_path / "evil.qcow2"
    do("qemu-img", "create", "-q", "-f", "qcow2", qcow2, "4M")
    patched(path, 0, qcow2.read_bytes()[:512])
    for claim in ("iso", "raw"):
        with pytest.raises(Unsafe, match="qcow2"):
            formats.check(path, claim)


def test_a_qcow2_over_another_file_is_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET.encode().ljust(512, b"\0"))
    path = make("qcow2", "-b", str(secret), "-F", "raw")
    with pytest.raises(Unsafe, match="backing file"):
        formats.check(path, "qcow2")


def test_a_qcow2_with_its_data_elsewhere_is_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    path = make("qcow2", "-o", f"data_file={tmp_path / 'data'},data_file_raw=on")
    with pytest.raises(Unsafe, match="another file"):
        formats.check(path, "qcow2")
    # The name alone, with the feature hidden, is no better.
    incompatible = struct.unpack(">Q", path.read_bytes()[72:80])[0]
    patched(path, 72, struct.pack(">Q", incompatible & ~4))
    with pytest.raises(Unsafe, match="names another file"):
        formats.check(path, "qcow2")


def test_the_name_of_a_data_file_is_found_behind_other_extensions(make: Callable[..., Path]) -> None:
    path = make("qcow2")
    extensions = struct.pack(">II", 0x12345678, 5) + bytes(8)
    extensions += struct.pack(">II", 0x44415441, 8) + b"/etc/pwd" + bytes(8)
    patched(path, struct.unpack(">I", path.read_bytes()[100:104])[0], extensions)
    with pytest.raises(Unsafe, match="names another file"):
        formats.check(path, "qcow2")


@pytest.mark.parametrize(
    "at, data, why",
    [
        (4, struct.pack(">I", 9), "version 9"),
        (20, struct.pack(">I", 40), "clusters"),
        (32, struct.pack(">I", 1), "encrypted"),
        (72, struct.pack(">Q", 2), "corrupt"),
        (72, struct.pack(">Q", 1 << 40), "unknown features"),
        (100, struct.pack(">I", 8), "impossible length"),
        (100, struct.pack(">I", 0xFFFFFFF8), "impossible length"),
    ],
)
def test_a_qcow2_with_a_strange_header_is_refused(make: Callable[..., Path], at: int, data: bytes, why: str) -> None:
    with pytest.raises(Unsafe, match=why):
        formats.check(patched(make("qcow2"), at, data), "qcow2")


def test_an_extension_may_not_leave_the_header(make: Callable[..., Path]) -> None:
    path = make("qcow2")
    length = struct.unpack(">I", path.read_bytes()[100:104])[0]
    with pytest.raises(Unsafe, match="extension"):
        formats.check(patched(path, length, struct.pack(">II", 0x12345678, 1 << 30)), "qcow2")


@pytest.mark.parametrize("length", [0, 3, 40, 100])
def test_what_ends_within_its_header_is_refused(tmp_path: Path, make: Callable[..., Path], length: int) -> None:
    path = tmp_path / "short"
    path.write_bytes(make("qcow2").read_bytes()[:length])
    with pytest.raises(Unsafe):
        formats.check(path, "qcow2")


@pytest.mark.parametrize("subformat", ["monolithicFlat", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat"])
def test_a_vmdk_of_several_files_is_refused(make: Callable[..., Path], subformat: str) -> None:
    path = make("vmdk", "-o", f"subformat={subformat}")
    with pytest.raises(Unsafe, match="other files"):
        formats.check(path, "vmdk")


def rewritten(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    head = data[:512]
    place, length = struct.unpack("<QQ", head[28:44])
    start, end = place * 512, (place + length) * 512
    descriptor = data[start:end].replace(old, new).rstrip(b"\0").ljust(length * 512, b"\0")
    return patched(path, start, descriptor[: length * 512])


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
def test_a_vmdk_whose_descriptor_leads_elsewhere_is_refused(make: Callable[..., Path], old: bytes, new: bytes) -> None:
    with pytest.raises(Unsafe, match="cannot be used"):
        formats.check(rewritten(make("vmdk"), old, new), "vmdk")


def test_a_vmdk_that_is_only_a_descriptor_is_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    # With no capacity in the header QEMU believes the descriptor.
    with pytest.raises(Unsafe, match="other files"):
        formats.check(patched(make("vmdk"), 12, bytes(8)), "vmdk")
    text = tmp_path / "text"
    text.write_text('# Disk DescriptorFile\nversion=1\ncreateType="monolithicFlat"\nRW 1 FLAT "/etc/shadow" 0\n')
    for claim in ("vmdk", "raw"):
        with pytest.raises(Unsafe):
            formats.check(text, claim)


def test_a_vhd_over_another_one_is_refused(make: Callable[..., Path]) -> None:
    with pytest.raises(Unsafe, match="laid over"):
        formats.check(patched(make("vhd"), 60, struct.pack(">I", 4)), "vhd")


@pytest.mark.parametrize(
    "names", [("ami", "bare"), ("ploop", "bare"), ("", "bare"), ("qcow2", "ova"), ("raw", "docker")]
)
def test_formats_that_cannot_be_used_are_named(names: tuple[str, str]) -> None:
    with pytest.raises(Unsafe, match="cannot be used on this host"):
        formats.check_names(*names)


DRIVERS = {"qcow2": "qcow2", "vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx"}


def test_whatever_passes_names_no_other_file(tmp_path: Path, make: Callable[..., Path]) -> None:
    """Headers of harmless and of evil disks, changed at random: QEMU is asked what it would open."""
    chance = random.Random(20261115)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(MIB))
    seeds = [(kind, make(kind).read_bytes()) for kind in DRIVERS]
    seeds.append(("qcow2", make("qcow2", "-b", str(secret), "-F", "raw").read_bytes()))
    seeds.append(("qcow2", make("qcow2", "-o", f"data_file={tmp_path / 'data'}").read_bytes()))
    passed = 0
    for _ in range(250):
        kind, content = chance.choice(seeds)
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            at, length = chance.randrange(min(1024, len(content))), chance.choice([1, 4, 8])
            changed[at : at + length] = chance.choice([bytes(length), b"\xff" * length, chance.randbytes(length)])
        path = tmp_path / "changed"
        path.write_bytes(changed)
        try:
            formats.check(path, kind)
        except Unsafe:
            continue
        passed += 1
        if passed % 3 == 0:  # QEMU takes its time
            assert secret.name not in named(path, DRIVERS[kind])
    assert passed > 30


def named(path: Path, driver: str) -> str:
    """Everything that QEMU says of it, if it opens it at all."""
    command = ["prlimit", "--as=1073741824", "--cpu=30", "--", "qemu-img", "info", "-f", driver, path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60)
    assert "backing file" not in done.stdout
    assert "data file:" not in done.stdout
    return done.stdout
