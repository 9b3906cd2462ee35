from __future__ import annotations

from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing, set_metadata
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    found = snapshot(host(1, aggregates=frozenset({1})), host(2, aggregates=frozenset({2})), host(3))
    return set_metadata(found, {1: {"os_distro": "windows,macos"}, 2: {"os_distro": "debian", "x.licence": "yes"}})


def test_hosts_with_another_value_of_the_property_are_rejected() -> None:
    assert passing("aggregate_image_properties", hosts(), image_properties={"os_distro": "windows"}) == {"h1", "h3"}
    assert passing("aggregate_image_properties", hosts(), image_properties={"os_distro": "plan9"}) == {"h3"}
    assert is_idle("aggregate_image_properties", hosts(), image_properties={"os_type": "linux"})
    assert is_idle("aggregate_image_properties", hosts())


def test_only_keys_of_the_configured_namespace_count() -> None:
    found = hosts()
    found.settings = SchedulerConfig(aggregate_image_properties_isolation_namespace="x")
    properties = {"os_distro": "windows", "x.licence": "no"}
    assert passing("aggregate_image_properties", found, image_properties=properties) == {"h1", "h3"}


def test_aggregate_image_properties_reason() -> None:
    explanation = explain("aggregate_image_properties", hosts(), image_properties={"os_distro": "debian"})
    text = "reserved for images with another os_distro"
    assert explanation == Explanation(text, "os_distro=debian", "os_distro=windows,macos")
