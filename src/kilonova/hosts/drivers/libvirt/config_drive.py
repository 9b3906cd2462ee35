"""The config drive: a CD with what the guest is told of itself, for guests that ask no network."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import metadata, programs

# By this label guests find it.
LABEL = "config-2"
# Whichever there is: they take the same options.
_PROGRAMS = ("genisoimage", "mkisofs", "xorrisofs")
_OPTIONS = ("-quiet", "-J", "-r", "-l", "-ldots", "-allow-lowercase", "-allow-multidot", "-publisher", "Kilonova")
_TREE, _PART = ".tree", ".part"


async def build_at(path: Path, documents: metadata.Documents) -> None:
    """Made anew where it is there already: what the guest is told may have changed."""
    program = next((name for name in _PROGRAMS if programs.find(name)), None)
    if program is None:
        raise DriverError(f"config drives are made by one of {', '.join(_PROGRAMS)}, and this host has none of them")
    tree, part = path.with_name(path.name + _TREE), path.with_name(path.name + _PART)
    try:
        await asyncio.to_thread(_plant, tree, documents)
        await programs.run(program, *_OPTIONS, "-V", LABEL, "-o", part, tree)
        part.chmod(0o600)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
        shutil.rmtree(tree, ignore_errors=True)


def _plant(tree: Path, documents: metadata.Documents) -> None:
    """Files of the same content are one file, there as well as on the CD."""
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
