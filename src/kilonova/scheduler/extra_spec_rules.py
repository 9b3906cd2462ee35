"""Comparison rules of extra specs: `>= 4`, `s== QEMU`, `<in> avx`, `<or> ssd <or> nvme`, or plain text."""

from __future__ import annotations

import operator
from collections.abc import Callable

_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.ge,  # as documented for extra specs: at least
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s>=": operator.ge,
    "s>": operator.gt,
    "s<=": operator.le,
    "s<": operator.lt,
}
_IN, _ALL_IN, _OR = "<in>", "<all-in>", "<or>"
_OPERATORS = frozenset({*_NUMBERS, *_TEXTS, _IN, _ALL_IN, _OR})


def satisfies(value: object, rule: str) -> bool:
    """Whether a value meets a rule; False if they cannot be compared. `<in>` also takes a list."""
    first, *words = rule.split() or [""]
    if words and first in _NUMBERS:
        return _compares(_NUMBERS[first], value, words[0])
    if words and first in _TEXTS:
        return _TEXTS[first](str(value), words[0])
    if words and first == _IN:
        return _contains(value, words[0])
    if words and first == _ALL_IN:
        return all(_contains(value, word) for word in words)
    if words and first == _OR:
        return str(value) in [choice.strip() for choice in rule.split(_OR)[1:]]
    return str(value) == rule


def describe_rule(name: str, rule: str) -> str:
    """`disk=ssd`, `tier >= 4`."""
    first, *words = rule.split() or [""]
    return f"{name} {rule}" if words and first in _OPERATORS else f"{name}={rule}"


def _compares(compare: Callable[[float, float], bool], value: object, wanted: str) -> bool:
    try:
        return compare(float(str(value)), float(wanted))
    except ValueError:
        return False


def _contains(value: object, word: str) -> bool:
    return word in value if isinstance(value, (list, tuple)) else word in str(value)
