"""`openstack server create --hypervisor-uuid`: the stock command, told one thing more."""

from __future__ import annotations

import argparse
from typing import Any

from cliff.hooks import CommandHook

VERSION = "2.105"
OPTION = "--hypervisor-uuid"


class OnHypervisor(CommandHook):
    """A hook of the client's own kind: it lives as long as one run of the command, and does nothing unasked."""

    def get_parser(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("kilonova")
        option = group.add_argument(
            OPTION,
            metavar="<uuid>",
            help=f"Boot on this one of the hypervisors that `hypervisor list` shows you (admin and manager only) "
            f"(supported by --os-compute-api-version {VERSION} or above)",
        )
        _never_abbreviated(parser, option)

    def get_epilog(self) -> str | None:
        return None

    def before(self, parsed_args: argparse.Namespace) -> argparse.Namespace:
        uuid = parsed_args.hypervisor_uuid
        if uuid is not None:
            command: Any = self.cmd
            manager = command.app.client_manager
            compute = _Before(manager.compute, create_server=_creator(manager, uuid))
            # Releases of the client differ in the way by which they come to it.
            connection = _Before(manager.sdk_connection, compute=compute)
            front = _Before(manager, compute=compute, sdk_connection=connection)
            command.app = _Before(command.app, client_manager=front)
        return parsed_args

    def after(self, parsed_args: argparse.Namespace, return_code: int) -> int:
        return return_code


class _Before:
    """Attributes in front of another object's. What stands behind stays as it is for the commands that follow."""

    def __init__(self, behind: Any, **own: Any) -> None:
        self.__dict__.update(own)
        self.__behind = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__behind, name)


def _creator(manager: Any, uuid: str) -> Any:
    """The compute client's `create_server`, on the hypervisor. Raises CommandError if that cannot be asked for."""
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
        # What is asked for when nobody chose a version.
        _max_microversion = VERSION
        hypervisor_uuid = resource.Body("hypervisor_uuid")

    def create(**attributes: Any) -> Any:
        server = PlacedServer.new(connection=manager.sdk_connection, hypervisor_uuid=uuid, **attributes)
        return server.create(compute)

    return create


def _never_abbreviated(parser: Any, option: argparse.Action) -> None:
    """Leave every abbreviation to the stock options: `--hypervisor` has always meant `--hypervisor-hostname`."""
    candidates = parser._get_option_tuples

    def without(text: str) -> list[Any]:
        return [found for found in candidates(text) if found[0] is not option]

    parser._get_option_tuples = without
