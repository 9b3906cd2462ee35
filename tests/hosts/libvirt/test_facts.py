"""What a host's processor can do, in the names that placement knows."""

from __future__ import annotations

from kilonova.hosts.drivers.libvirt.facts import cpu_traits


def test_features_of_processors_have_the_names_of_traits() -> None:
    flags = ["sse4_2", "avx512_vnni", "avx2", "aes", "fma", "vmx", "bmi1", "pclmulqdq", "constant_tsc", "fpu"]
    names = ["AESNI", "AVX2", "AVX512VNNI", "BMI", "CLMUL", "FMA3", "INTEL_VMX", "SSE42", "VMX"]
    assert sorted(cpu_traits(flags)) == [f"HW_CPU_X86_{name}" for name in names]
