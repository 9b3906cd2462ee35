"""JSON patches of images: parsing, checks and application."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from msgspec import convert, structs

from kilonova.http.errors import BadRequest, Conflict, Forbidden, HttpError, TooLarge
from kilonova.http.schema import Validator
from kilonova.image.images.model import Image, ImageDetails
from kilonova.image.images.schemas import (
    MAX_PROPERTIES,
    MAX_TAGS,
    PROPERTY,
    READ_ONLY_ATTRIBUTES,
    RESERVED_NAMES,
    TAG,
    WRITABLE_ATTRIBUTES,
)

MEDIA_TYPES = {
    "application/openstack-images-v2.1-json-patch": 1,
    "application/openstack-images-v2.0-json-patch": 0,
}
MAX_OPERATIONS = 256
_VERBS = ("add", "replace", "remove")
# Columns whose names differ from the attributes'.
_COLUMNS = {"os_hidden": "hidden"}


class Operation(NamedTuple):
    verb: str
    name: str
    """The attribute or property."""
    element: str | None
    """The element of a list; `-` appends."""
    value: object


def parse(document: object, version: int) -> list[Operation]:
    """The operations of a document in the format of 2.0 (`{"add": "/x"}`) or 2.1 (`{"op": "add", "path": "/x"}`)."""
    if not isinstance(document, list):
        raise BadRequest("Request body must be a JSON array of operation objects.")
    if len(document) > MAX_OPERATIONS:
        raise TooLarge(f"A patch can have at most {MAX_OPERATIONS} operations.")
    return [_operation(given, version) for given in document]


def _operation(given: object, version: int) -> Operation:
    if not isinstance(given, dict):
        raise BadRequest("Operations must be JSON objects.")
    if version == 0:
        verbs = [verb for verb in _VERBS if verb in given]
        if len(verbs) != 1:
            raise BadRequest(f"Operation objects must contain exactly one member named {', '.join(_VERBS)}.")
        verb, path = verbs[0], given[verbs[0]]
    else:
        if "op" not in given or "path" not in given:
            raise BadRequest('Operation objects must contain the members "op" and "path".')
        verb, path = given["op"], given["path"]
        if verb not in _VERBS:
            raise BadRequest(f"Operations must be one of {', '.join(_VERBS)}.")
    if verb != "remove" and "value" not in given:
        raise BadRequest(f'Operation "{verb}" requires a member named "value".')
    name, element = _path(path)
    return Operation(verb, name, element, given.get("value"))


def _path(path: object) -> tuple[str, str | None]:
    if not isinstance(path, str) or not path.startswith("/") or path.endswith("/"):
        raise BadRequest(f"Pointer {str(path)[:80]!r} must begin with a slash, name an attribute and not end with one.")
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    if "" in parts or len(parts) > 2 or (len(parts) == 2 and parts[0] != "tags"):
        raise BadRequest(f"Pointer {path[:80]!r} does not name an attribute of an image.")
    if len(parts[0]) > 255:
        raise BadRequest("The name of a property must have at most 255 characters.")
    return parts[0], parts[1] if len(parts) == 2 else None


def apply(before: ImageDetails, operations: list[Operation]) -> ImageDetails:
    """The image after the operations. Writes nothing."""
    image, changes = before.image, {}
    properties, tags = dict(before.properties), before.tags
    for operation in operations:
        if operation.name == "tags":
            tags = _changed_tags(tags, operation)
        elif operation.name in WRITABLE_ATTRIBUTES:
            changes[_COLUMNS.get(operation.name, operation.name)] = _changed_attribute(image, operation)
        else:
            _change_property(properties, operation)
    if len(properties) > MAX_PROPERTIES:
        raise limit_exceeded("properties", MAX_PROPERTIES)
    return ImageDetails(structs.replace(image, **changes), properties, sorted(set(tags)))


def limit_exceeded(what: str, maximum: int) -> HttpError:
    return TooLarge(f"The image would have too many {what}: at most {maximum} are allowed.")


def _changed_attribute(image: Image, operation: Operation) -> object:
    name = operation.name
    if operation.verb == "remove":
        raise Forbidden(f"Property {name} may not be removed.")
    _check_attribute(name, operation.value)
    is_fixed = name in ("disk_format", "container_format") and image.status != "queued"
    if is_fixed and operation.value != getattr(image, name):
        raise Forbidden(f"Attribute {name} can be only replaced for a queued image.")
    return operation.value


def _change_property(properties: dict[str, str], operation: Operation) -> None:
    name = operation.name
    check_name(name)
    if operation.verb != "add" and name not in properties:
        raise Conflict(f"Property {name} does not exist.")
    if operation.verb == "remove" or operation.value is None:
        properties.pop(name, None)
    else:
        check_property(name, operation.value)
        properties[name] = str(operation.value)


def check_name(name: str) -> None:
    """Refuse names that users may not give to a property."""
    if name in READ_ONLY_ATTRIBUTES or name == "id":
        raise Forbidden(f"Attribute '{name}' is read-only.")
    if name in RESERVED_NAMES or name.startswith("os_glance"):
        raise Forbidden(f"Attribute '{name}' is reserved.")


def check_property(name: str, value: object) -> None:
    _validators()["*"].check({name: value}, "image")


def _check_attribute(name: str, value: object) -> None:
    _validators()[name].check({name: value}, "image")


@cache
def _validators() -> dict[str, Validator]:
    """One validator for each attribute, and one for all properties."""
    found = {
        name: Validator({"type": "object", "properties": {name: schema}})
        for name, schema in WRITABLE_ATTRIBUTES.items()
    }
    found["*"] = Validator({"type": "object", "additionalProperties": PROPERTY})
    found["tag"] = Validator({"type": "object", "properties": {"tag": TAG}})
    return found


def _changed_tags(tags: list[str], operation: Operation) -> list[str]:
    if operation.element is None:
        if operation.verb == "remove":
            return []
        _check_attribute("tags", operation.value)
        return convert(operation.value, list[str])
    if operation.verb != "add" or operation.element != "-":
        raise BadRequest("Single tags can only be added, with the path /tags/-.")
    _validators()["tag"].check({"tag": operation.value}, "image")
    if len({*tags, operation.value}) > MAX_TAGS:
        raise limit_exceeded("tags", MAX_TAGS)
    return [*tags, str(operation.value)]
