"""Adds the option `--hypervisor-uuid` to `openstack server create`."""

from __future__ import annotations

import argparse
from typing import Any

from cliff.hooks import CommandHook

VERSION = "2.105"
OPTION = "--hypervisor-uuid"


class OnHypervisor(CommandHook):
    """A cliff hook of the command. It changes nothing if the option is not used."""

    def get_parser(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("kilonova")
        option = group.add_argument(
            OPTION,
            metavar="<uuid>",
            help=f"Boot on this hypervisor of `hypervisor list` (admin and manager only) "
            f"(supported by --os-compute-api-version {VERSION} or above)",
        )
        _forbid_abbreviation(parser, option)

    def get_epilog(self) -> str | None:
        return None

    def before(self, parsed_args: argparse.Namespace) -> argparse.Namespace:
        uuid = parsed_args.hypervisor_uuid
        if uuid is not None:
            command: Any = self.cmd
            manager = command.app.client_manager
            compute = _Overlay(manager.compute, create_server=_make_create_server(manager, uuid))
            # Releases of the client reach the compute client through different attributes.
            connection = _Overlay(manager.sdk_connection, compute=compute)
            overlay = _Overlay(manager, compute=compute, sdk_connection=connection)
            command.app = _Overlay(command.app, client_manager=overlay)
        return parsed_args

    def after(self, parsed_args: argparse.Namespace, return_code: int) -> int:
        return return_code


class _Overlay:
    """Overrides attributes of another object, which itself stays unchanged for later commands."""

    def __init__(self, target: Any, **overrides: Any) -> None:
        self.__dict__.update(overrides)
        self.__target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__target, name)


def _make_create_server(manager: Any, uuid: str) -> Any:
    """A `create_server` that requests the hypervisor. Raises CommandError if client or API version is too old."""
    from openstack import resource, utils
    from openstack.compute.v2.server import Server
    from osc_lib.exceptions import CommandError

    compute = manager.compute
    if not hasattr(compute, "create_server"):
        raise CommandError(f"This openstack client is too old to support the {OPTION} option")
    if not utils.supports_microversion(compute, VERSION):
        message = f"--os-compute-api-version {VERSION} or greater is required to support the {OPTION} option"
        raise CommandError(message)

    class PlacedServer(Server):
        # The microversion to use if the user gives none.
        _max_microversion = VERSION
        hypervisor_uuid = resource.Body("hypervisor_uuid")

    def create(**attributes: Any) -> Any:
        server = PlacedServer.new(connection=manager.sdk_connection, hypervisor_uuid=uuid, **attributes)
        return server.create(compute)

    return create


def _forbid_abbreviation(parser: Any, option: argparse.Action) -> None:
    """Exclude the option from abbreviations: `--hypervisor` must keep meaning `--hypervisor-hostname`."""
    candidates = parser._get_option_tuples

    def without_option(text: str) -> list[Any]:
        return [found for found in candidates(text) if found[0] is not option]

    parser._get_option_tuples = without_option
