"""Compares a response with a published sample: the same keys, and values of the same types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(sample: Any, response: Any, place: str = "") -> Iterator[str]:
    """The paths with differences. Empty lists, empty objects and nulls match everything."""
    if sample is None or response is None:
        return
    if isinstance(sample, dict) and isinstance(response, dict):
        if not sample or not response:
            return
        yield from _object_differences(sample, response, place)
    elif isinstance(sample, list) and isinstance(response, list):
        for index, entry in enumerate(response if sample else ()):
            # Entries of a list may differ from each other: compare with the most similar entry of the sample.
            yield from min((list(differences(each, entry, f"{place}[{index}]")) for each in sample), key=len)
    elif _json_type(sample) != _json_type(response):
        yield f"{place}: {_json_type(response)} instead of {_json_type(sample)}"


def _object_differences(sample: dict[str, Any], response: dict[str, Any], place: str) -> Iterator[str]:
    for key in sample.keys() - response.keys():
        yield f"{place}.{key} is missing"
    for key in response.keys() - sample.keys():
        yield f"{place}.{key} is not in the sample"
    for key in sample.keys() & response.keys():
        yield from differences(sample[key], response[key], f"{place}.{key}")


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", dict: "object", list: "array"}[type(value)]
