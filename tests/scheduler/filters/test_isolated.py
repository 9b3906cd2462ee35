from __future__ import annotations

from typing import Any

from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot


def hosts(**settings: Any) -> Hosts:
    found = snapshot(host(1), host(2))
    found.settings = SchedulerConfig(isolated_hosts=("h1",), isolated_images=("windows",), **settings)
    return found


def test_isolated_images_and_hosts_accept_only_each_other() -> None:
    assert passing("isolated", hosts(), image_id="windows") == {"h1"}
    assert passing("isolated", hosts(), image_id="debian") == {"h2"}
    assert passing("isolated", hosts()) == {"h2"}


def test_isolated_hosts_may_accept_other_images() -> None:
    found = hosts(restrict_isolated_hosts_to_isolated_images=False)
    assert is_idle("isolated", found, image_id="debian")
    assert passing("isolated", found, image_id="windows") == {"h1"}


def test_isolated_reasons() -> None:
    inside = Explanation("not set aside for this image", "a host set aside for image windows", "h2")
    assert explain("isolated", hosts(), 1, image_id="windows") == inside
    assert explain("isolated", hosts(), image_id="debian") == Explanation(
        "set aside for other images", "a host for all images", "h1"
    )
    assert is_idle("isolated", snapshot(host(1)))
