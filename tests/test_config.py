"""Tests of the configuration: where settings come from, and former names of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.config import Config, load
from kilonova.config_names import FORMER_NAMES, REMOVED, ConfigError, new_name

BY_NAME = [(section, old, *new_name(section, old)) for section, old in FORMER_NAMES]
VALUES: dict[type, tuple[str, object]] = {
    int: ("7", 7),
    float: ("7.5", 7.5),
    str: ('"seven"', "seven"),
    list: ('["seven"]', ["seven"]),
}


def value(config: Config, section: str, name: str) -> object:
    found: object = getattr(getattr(config, section), name)
    return found


@pytest.mark.parametrize(("section", "old", "place", "new"), BY_NAME)
def test_former_name_in_a_file_sets_the_setting(tmp_path: Path, section: str, old: str, place: str, new: str) -> None:
    text, expected = VALUES[type(value(Config(), place, new))]
    file = tmp_path / "kilonova.toml"
    file.write_text(f"[{section}]\n{old} = {text}\n")
    assert value(load(file, {}), place, new) == expected


@pytest.mark.parametrize(("section", "old", "place", "new"), BY_NAME)
def test_former_name_in_the_environment_and_in_flags_sets_the_setting(
    section: str, old: str, place: str, new: str
) -> None:
    text, expected = VALUES[type(value(Config(), place, new))]
    text = text.strip('["]')
    assert value(load(None, {f"KILONOVA_{section}__{old}".upper(): text}), place, new) == expected
    assert value(load(None, {}, {f"{section}.{old}": text}), place, new) == expected


@pytest.mark.parametrize(("section", "old", "place", "new"), BY_NAME)
def test_former_name_is_no_setting_of_its_own(section: str, old: str, place: str, new: str) -> None:
    assert hasattr(getattr(Config(), place), new)
    assert not hasattr(getattr(Config(), section), old)


def test_both_names_of_one_setting_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "kilonova.toml"
    file.write_text("[operations]\nhost_seconds = 5\nhost_timeout_seconds = 6\n")
    with pytest.raises(
        ConfigError, match=r"operations\.host_seconds is the former name of operations\.host_timeout_seconds"
    ):
        load(file, {})


def test_environment_overrides_a_former_name_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "kilonova.toml"
    file.write_text("[operations]\nhost_seconds = 5\n")
    assert load(file, {"KILONOVA_OPERATIONS__HOST_TIMEOUT_SECONDS": "6"}).operations.host_timeout_seconds == 6


@pytest.mark.parametrize(("section", "name"), list(REMOVED))
def test_removed_setting_is_ignored_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, section: str, name: str
) -> None:
    file = tmp_path / "kilonova.toml"
    file.write_text(f'[{section}]\n{name} = "seven"\n')
    for config in (load(file, {}), load(None, {f"KILONOVA_{section}__{name}".upper(): "seven"})):
        assert not hasattr(getattr(config, section), name)
    assert [f"{section}.{name} is ignored" in record.message for record in caplog.records] == [True, True]
    assert "seven" not in caplog.text


@pytest.mark.parametrize("zone", ["internal", "a:b", "x" * 256, "a\nb"])
@pytest.mark.parametrize("setting", ["zones", "scheduler.default_zone"])
def test_invalid_names_of_zones_are_refused(setting: str, zone: str) -> None:
    with pytest.raises(ConfigError, match=f"^Configuration: {setting}: "):
        load(None, {}, {setting: zone})


def test_names_of_zones() -> None:
    assert load(None, {}, {"zones": " a zone, internals ,ω"}).zones == ["a zone", "internals", "ω"]


@pytest.mark.parametrize("template", ["", "instance", "%(uuid)", "%(name)s", "a\n%(uuid)s", "%(uuid)300s"])
def test_invalid_template_of_instance_names_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match=r"^Configuration: compute\.instance_name_template: "):
        load(None, {"KILONOVA_COMPUTE__INSTANCE_NAME_TEMPLATE": template})
