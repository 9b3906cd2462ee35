"""The host's description: its configured name, and CPU traits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from kilonova.config import Config
from kilonova.hosts.drivers.libvirt.connection import Connection
from kilonova.hosts.drivers.libvirt.facts import cpu_traits, describe
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.drivers.libvirt.layout import Layout
from tests.support import run


class _Libvirt:
    """Has no getHostname: it would wait for a DNS lookup, so the driver must not call it."""

    async def call_once(self, call: Any, *args: Any) -> Any:
        return call(self, *args)

    def getVersion(self) -> int:
        return 7002000

    def getCapabilities(self) -> str:
        return "<capabilities><host><cpu><arch>x86_64</arch></cpu></host></capabilities>"

    def getDomainCapabilities(self, *_: Any) -> str:
        return "<domainCapabilities/>"


def test_hypervisor_hostname_is_the_configured_name(tmp_path: Path) -> None:
    config = Config(data=str(tmp_path))
    found = run(describe(Hypervisor("one", config, cast(Connection, _Libvirt()), Layout(tmp_path / "instances"))))
    assert (found.host, found.hypervisor_hostname, found.hypervisor_version) == ("one", "one", 7002000)


def test_cpu_flags_become_traits() -> None:
    flags = ["sse4_2", "avx512_vnni", "avx2", "aes", "fma", "vmx", "bmi1", "pclmulqdq", "constant_tsc", "fpu"]
    names = ["AESNI", "AVX2", "AVX512VNNI", "BMI", "CLMUL", "FMA3", "INTEL_VMX", "SSE42", "VMX"]
    assert sorted(cpu_traits(flags)) == [f"HW_CPU_X86_{name}" for name in names]
