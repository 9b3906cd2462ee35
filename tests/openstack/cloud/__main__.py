"""Start and stop the cloud from a shell: `python -m tests.openstack.cloud install|up|down|status|env`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.openstack.cloud.cloud import Cloud
from tests.openstack.cloud.install import install_missing
from tests.openstack.cloud.memory import memory
from tests.openstack.cloud.processes import CloudError
from tests.openstack.cloud.settings import REGION


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.openstack.cloud", description=__doc__)
    parser.add_argument("command", choices=("install", "up", "down", "status", "env"))
    parser.add_argument("--user", default="admin", help="user whose variables `env` prints")
    parser.add_argument("--project", default="admin", help="project whose variables `env` prints")
    arguments = parser.parse_args()
    cloud = Cloud()
    try:
        if arguments.command == "install":
            install_missing(cloud.settings)
        elif arguments.command == "up":
            up(cloud)
        elif arguments.command == "down":
            cloud.stop()
        elif arguments.command == "status":
            sys.exit(not status(cloud))
        else:
            env(cloud, arguments.user, arguments.project)
    except CloudError as error:
        sys.exit(f"error: {error}")


def up(cloud: Cloud) -> None:
    began = time.monotonic()
    cloud.start()
    seconds = time.monotonic() - began
    auth = cloud.auth()
    print(f"up in {seconds:.1f} s: {auth['auth_url']}, user {auth['username']}, password {auth['password']}")


def status(cloud: Cloud) -> bool:
    """Print each process with its memory. Returns whether all run."""
    total = 0
    for name, pid in cloud.processes().items():
        mebibytes = memory(pid) if pid else 0
        total += mebibytes
        print(f"{name:18} {f'process {pid:7}' if pid else 'does not run   '} {mebibytes:5} MiB")
    print(f"{'all':34} {total:5} MiB")
    return cloud.is_running()


def env(cloud: Cloud, user: str, project: str) -> None:
    """Print what a shell needs for the stock client."""
    values = {**cloud.auth(user, project), "identity_api_version": "3", "region_name": REGION}
    for name, value in values.items():
        print(f"export OS_{name.upper()}={value}")


if __name__ == "__main__":
    main()
