from __future__ import annotations

import pytest

from kilonova.scheduler.extra_spec_rules import describe_rule, satisfies


@pytest.mark.parametrize(
    "value, rule, met",
    [
        ("ssd", "ssd", True),
        ("ssd", "hdd", False),
        ("a b", "a b", True),
        ("", "", True),
        (8, "8", True),
        ("4", "= 4", True),
        ("5", "= 4", True),  # at least, as the documentation has it
        ("3", "= 4", False),
        ("4.0", "== 4", True),
        ("5", "== 4", False),
        ("5", "!= 4", True),
        (4, ">= 4", True),
        (3, ">= 4", False),
        (4, "<= 4", True),
        ("many", ">= 4", False),
        (4, ">= many", False),
        ("abc", "s== abc", True),
        ("abc", "s!= abc", False),
        ("b", "s> a", True),
        ("b", "s>= b", True),
        ("b", "s< a", False),
        ("b", "s<= b", True),
        ("x86_64 sse", "<in> sse", True),
        (["avx", "aes"], "<in> avx", True),
        (["avx2"], "<in> avx", False),
        (["avx", "aes"], "<all-in> aes avx", True),
        (["avx"], "<all-in> aes avx", False),
        ("ssd", "<or> ssd <or> nvme", True),
        ("hdd", "<or> ssd <or> nvme", False),
        (">=", ">=", True),  # an operator with nothing to compare is a text
    ],
)
def test_satisfies(value: object, rule: str, met: bool) -> None:
    assert satisfies(value, rule) is met


def test_describe_rule() -> None:
    assert describe_rule("disk", "ssd") == "disk=ssd"
    assert describe_rule("tier", ">= 4") == "tier >= 4"
    assert describe_rule("tier", "") == "tier="
