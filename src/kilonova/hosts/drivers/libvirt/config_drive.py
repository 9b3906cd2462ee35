"""Builds config drives: ISO images with the guest's metadata."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import metadata, programs

# Guests find the config drive by this label.
LABEL = "config-2"
# The first one installed is used: all take the same options.
_PROGRAMS = ("genisoimage", "mkisofs", "xorrisofs")
_OPTIONS = ("-quiet", "-J", "-r", "-l", "-ldots", "-allow-lowercase", "-allow-multidot", "-publisher", "Kilonova")
_TREE, _PART = ".tree", ".part"


async def build(path: Path, documents: metadata.Documents) -> None:
    """Build the config drive, replacing an existing one, because the metadata may have changed."""
    program = next((name for name in _PROGRAMS if programs.find(name)), None)
    if program is None:
        raise DriverError(f"config drives require one of {', '.join(_PROGRAMS)}, but none is installed on this host")
    tree, part = path.with_name(path.name + _TREE), path.with_name(path.name + _PART)
    try:
        await asyncio.to_thread(_write_tree, tree, documents)
        await programs.run(program, *_OPTIONS, "-V", LABEL, "-o", part, tree)
        part.chmod(0o600)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
        shutil.rmtree(tree, ignore_errors=True)


def _write_tree(tree: Path, documents: metadata.Documents) -> None:
    """Write the documents as files. Files with equal content are hard links, which saves space on the ISO too."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(mode=0o700, parents=True)
    written: dict[bytes, Path] = {}
    for name, content in documents.items():
        if name.partition("/")[0] not in (metadata.OPENSTACK, metadata.EC2):
            continue
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content in written:
            os.link(written[content], path)
        else:
            path.write_bytes(content)
            written[content] = path
