"""The settings and options that docs/existing-cloud.md shows exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kilonova.cli.register import register
from kilonova.config import load
from kilonova.startup_checks import Roles, check
from tests.openstack.cloud.configuration import cinder, neutron
from tests.openstack.cloud.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs/existing-cloud.md").read_text()
CODE = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", [text for language, text in CODE if language == "toml"])
def test_configurations_are_valid(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cloud.toml"
    if "auth_url" not in text:  # a part of a configuration
        text = text.replace("[identity]", '[identity]\nauth_url = "https://keystone.example:5000"')
    file.write_text(text)
    config = load(file, environ={"KILONOVA_IDENTITY__PASSWORD": "secret"})
    check(config, Roles())
    assert not any(config.is_built_in(service) for service in ("identity", "image", "network", "volume"))


def test_options_exist() -> None:
    known = {option for parameter in register.params for option in parameter.opts}
    table = PAGE.partition("| Option | Effect |")[2].partition("\n\n")[0]
    named = set(re.findall(r"--[a-z-]+", "".join(line.split("|")[1] for line in table.splitlines()[2:])))
    assert named
    assert named <= known


def test_sections_of_neutron_and_cinder_are_those_of_the_tested_services(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    examples = [text for language, text in CODE if language == "ini"]
    for example, tested in zip(examples, (neutron(settings), cinder(settings, "cinder-api")), strict=True):
        shown: dict[str, set[str]] = {}
        for line in example.splitlines():
            if line.startswith("["):
                section = shown.setdefault(line.strip("[]"), set())
            elif line:
                section.add(line.partition(" =")[0])
        for name, keys in shown.items():
            assert keys <= tested[name].keys(), name
