"""Comparing an answer with a published sample: the same keys, and values of the same types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(sample: Any, answer: Any, place: str = "") -> Iterator[str]:
    """Where the answer has another shape. Empty lists, empty objects and nulls say nothing of what they could hold."""
    if sample is None or answer is None:
        return
    if isinstance(sample, dict) and isinstance(answer, dict):
        if not sample or not answer:
            return
        yield from _objects(sample, answer, place)
    elif isinstance(sample, list) and isinstance(answer, list):
        for index, entry in enumerate(answer if sample else ()):
            # Entries of one list may differ among themselves: the sample's most similar one counts.
            yield from min((list(differences(each, entry, f"{place}[{index}]")) for each in sample), key=len)
    elif _kind(sample) != _kind(answer):
        yield f"{place}: {_kind(answer)} instead of {_kind(sample)}"


def _objects(sample: dict[str, Any], answer: dict[str, Any], place: str) -> Iterator[str]:
    for key in sample.keys() - answer.keys():
        yield f"{place}.{key} is missing"
    for key in answer.keys() - sample.keys():
        yield f"{place}.{key} is not in the sample"
    for key in sample.keys() & answer.keys():
        yield from differences(sample[key], answer[key], f"{place}.{key}")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", dict: "object", list: "array"}[type(value)]
