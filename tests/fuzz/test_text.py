"""Unusual text is stored and returned unchanged, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.fuzz.support import fuzzed_cloud, new_database
from tests.support.cloud_process import Client, CloudProcess

TEXTS = {
    "plain": "server",
    "emoji": "\U0001f600\U0001f4a5",
    "emoji of several characters": "\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f3fd",
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "directions mixed": "a\u202eb\u202cc",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "dotted capital I": "\u0130\u0131iI",
    "sharp s": "\u00df\u1e9e",
    "full width": "\uff41\uff22",
    "Chinese": "\u4f60\u597d\u4e16\u754c",
    "rare Chinese": "\U00020000\U0002a6d6",
    "Thai": "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "marks upon marks": "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f",
    "zero width": "a\u200bb\u2060c\ufeffd",
    "line separators": "a\u2028b\u2029c\u0085d",
    "no character": "\ufffe\uffff\U0010ffff",
    "private use": "\ue000\U000f0000",
    "replacement": "\ufffd",
    "quotes": "'\"`\u201c\u2019",
    "SQL": "x'; DROP TABLE servers; --",
    "placeholders": "$1 ?1 :a %s {0} {} %(a)s \\1",
    "patterns": "%_*.[a]",
    "backslashes": "\\ \\\\ \\n \\u0041 \\",
    "HTML": "<script>alert('x')</script>&amp;",
    "JSON": '{"a": [1, null]}',
    "255": "n" * 255,
    "255 emoji": "\U0001f600" * 255,
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    url = new_database(request.getfixturevalue("postgresql_server")) if request.param == "postgresql" else ""
    with fuzzed_cloud(tmp_path_factory.mktemp("text") / "data", url) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def client(cloud: CloudProcess) -> Client:
    return cloud.client("kilonova")


def create(client: Client, service: str, path: str, body: Any, *keys: str) -> Any:
    answer = client.post(service, path, body, version="2.96" if service == "compute" else None)
    assert answer.status in (200, 201, 202), answer.body
    shown = answer.json()
    for key in keys:
        shown = shown[key]
    return shown


def shown(client: Client, service: str, path: str, *keys: str) -> Any:
    answer = client.get(service, path, version="2.96" if service == "compute" else None)
    assert answer.status == 200, answer.body
    found = answer.json()
    for key in keys:
        found = found[key]
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_text_in_servers(client: Client, name: str) -> None:
    text = TEXTS[name]
    # By name, because other tests create images too.
    image = shown(client, "image", "/images?name=cirros-sim", "images")[0]["id"]
    server = {
        "name": text,
        "description": text,
        "metadata": {"key": text},
        "flavorRef": "1",
        "imageRef": image,
        "networks": "none",
    }
    server_id = create(client, "compute", "/servers", {"server": server}, "server", "id")
    found = shown(client, "compute", f"/servers/{server_id}", "server")
    assert (found["name"], found["description"], found["metadata"]) == (text, text, {"key": text})
    assert found["OS-EXT-SRV-ATTR:hostname"].isascii()
    renamed = client.put("compute", f"/servers/{server_id}", {"server": {"name": text[::-1].strip()}}, version="2.96")
    assert renamed.json()["server"]["name"] == text[::-1].strip()


@pytest.mark.parametrize("name", TEXTS)
def test_text_in_flavors(client: Client, name: str) -> None:
    text = TEXTS[name]
    flavor = {"name": text, "description": text, "ram": 1, "vcpus": 1, "disk": 1}
    flavor_id = create(client, "compute", "/flavors", {"flavor": flavor}, "flavor", "id")
    found = shown(client, "compute", f"/flavors/{flavor_id}", "flavor")
    assert (found["name"], found["description"]) == (text, text)
    listed = shown(client, "compute", "/flavors", "flavors")
    assert [each["name"] for each in listed if each["id"] == flavor_id] == [text]


@pytest.mark.parametrize("name", TEXTS)
def test_text_in_images(client: Client, name: str) -> None:
    text = TEXTS[name]
    image_id = create(client, "image", "/images", {"name": text, "own": text, "tags": [text]}, "id")
    found = shown(client, "image", f"/images/{image_id}")
    assert (found["name"], found["own"], found["tags"]) == (text, text, [text])
    for key in ("name", "own", "tag"):
        listed = shown(client, "image", "/images?" + urlencode({key: text}), "images")
        assert [each["id"] for each in listed] == [image_id], key
    if "/" not in text and "\ufffd" not in text:
        assert client.delete("image", f"/images/{image_id}/tags/{quote(text, safe='')}").status == 204


@pytest.mark.parametrize("name", TEXTS)
def test_text_in_networks(client: Client, name: str) -> None:
    text = TEXTS[name]
    for noun in ("network", "router", "security_group"):
        path = f"/{noun.replace('_', '-')}s"
        made_id = create(client, "network", path, {noun: {"name": text, "description": text}}, noun, "id")
        found = shown(client, "network", f"{path}/{made_id}", noun)
        assert (found["name"], found["description"]) == (text, text)
        listed = shown(client, "network", f"{path}?" + urlencode({"name": text}), f"{noun}s")
        assert [each["id"] for each in listed] == [made_id]


@pytest.mark.parametrize("name", TEXTS)
def test_text_in_identity(client: Client, name: str) -> None:
    text = TEXTS[name]
    for noun, limit in (("user", 255), ("project", 64), ("domain", 64), ("role", 255)):
        truncated = text[:limit].strip()
        named = {"name": truncated, "description": text, "own": {"any": [text]}}
        made_id = create(client, "identity", f"/{noun}s", {noun: named}, noun, "id")
        found = shown(client, "identity", f"/{noun}s/{made_id}", noun)
        assert (found["name"], found["description"], found["own"]) == (truncated, text, {"any": [text]})
        listed = shown(client, "identity", f"/{noun}s?" + urlencode({"name": truncated}), f"{noun}s")
        assert [each["id"] for each in listed] == [made_id]


def test_text_in_passwords(cloud: CloudProcess, client: Client) -> None:
    """Users can log in with their password, and with no other."""
    for place, kind in enumerate(("emoji", "decomposed", "no character", "backslashes", "255 emoji")):
        text = TEXTS[kind]
        user = {"name": f"user {place}", "password": text, "domain_id": "default"}
        create(client, "identity", "/users", {"user": user})
        for tried, status in ((text, 201), (text + "x", 401)):
            named = {"name": user["name"], "domain": {"id": "default"}, "password": tried}
            body = {"auth": {"identity": {"methods": ["password"], "password": {"user": named}}}}
            assert client.request_url("POST", client.endpoints["auth_url"] + "/auth/tokens", json=body).status == status


@pytest.mark.parametrize("text", ["n" * 256, "\U0001f600" * 256, "", " ", " x", "x ", "a\tb", "a\nb", "a\x7fb", "\x01"])
def test_invalid_names_are_refused_by_compute(client: Client, text: str) -> None:
    for path, body in (
        ("/servers", {"server": {"name": text, "flavorRef": "1", "imageRef": "x", "networks": "none"}}),
        ("/flavors", {"flavor": {"name": text, "ram": 1, "vcpus": 1, "disk": 1}}),
    ):
        answer = client.post("compute", path, body, version="2.96")
        assert answer.status == 400, text
        assert "name" in answer.json()["badRequest"]["message"]


def test_names_differ_by_every_character(client: Client) -> None:
    """Neither database folds case, normalizes characters or strips spaces."""
    for text in ("caf\u00e9", "cafe\u0301", "CAF\u00c9", "cafe", "caf\u00e9\u200b"):
        create(client, "compute", "/flavors", {"flavor": {"name": text, "ram": 1, "vcpus": 1, "disk": 1}})
