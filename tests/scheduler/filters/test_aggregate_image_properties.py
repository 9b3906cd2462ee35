from __future__ import annotations

from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Said, describe, idle, passing, said
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    found = snapshot(host(1, aggregates=frozenset({1})), host(2, aggregates=frozenset({2})), host(3))
    return describe(found, {1: {"os_distro": "windows,macos"}, 2: {"os_distro": "debian", "x.licence": "yes"}})


def test_an_image_with_the_property_goes_where_its_value_is_welcome() -> None:
    assert passing("aggregate_image_properties", hosts(), image_properties={"os_distro": "windows"}) == {"h1", "h3"}
    assert passing("aggregate_image_properties", hosts(), image_properties={"os_distro": "plan9"}) == {"h3"}
    assert idle("aggregate_image_properties", hosts(), image_properties={"os_type": "linux"})
    assert idle("aggregate_image_properties", hosts())


def test_only_keys_of_a_configured_namespace_count() -> None:
    found = hosts()
    found.settings = SchedulerConfig(aggregate_image_properties_isolation_namespace="x")
    properties = {"os_distro": "windows", "x.licence": "no"}
    assert passing("aggregate_image_properties", found, image_properties=properties) == {"h1", "h3"}


def test_it_says_which_property() -> None:
    words = said("aggregate_image_properties", hosts(), image_properties={"os_distro": "debian"})
    text = "reserved for images with another os_distro"
    assert words == Said(text, "os_distro=debian", "os_distro=windows,macos")
