"""Manila as PyPI ships it, with its dummy driver: its shares in servers of a cloud that names it in `share.url`."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.client_suites.manila.scenario import ManilaScenario
from tests.client_suites.services.installation import Installation
from tests.client_suites.services.process import ServiceProcess
from tests.client_suites.services.registration import Registration, credentials
from tests.client_suites.suite import RESULTS_DIRECTORY, Outcome, Suite
from tests.support.cloud_process import CloudProcess
from tests.support.ports import free_port

PACKAGES = ("manila", "gunicorn", "psycopg2-binary")
# The cloud's settings have the URL before Manila starts.
PORT = free_port()
URL = f"http://127.0.0.1:{PORT}"


@dataclass(frozen=True)
class ManilaSuite(Suite):
    def run_tests(self, cloud: CloudProcess, workspace: Path, only: str) -> dict[str, Outcome]:
        with running_manila(cloud, workspace) as api:
            return ManilaScenario(cloud, URL, api).run(RESULTS_DIRECTORY / "manila.output", only)


@contextmanager
def running_manila(cloud: CloudProcess, workspace: Path) -> Iterator[ServiceProcess]:
    """Manila beside the cloud; yields the process of its API."""
    with Installation("manila", PACKAGES, workspace) as manila:
        settings = register(cloud)
        settings["DEFAULT"]["api_paste_config"] = str(manila.directory / "etc" / "manila" / "api-paste.ini")
        settings["DEFAULT"]["state_path"] = str(workspace)
        settings["oslo_concurrency"] = {"lock_path": str(workspace)}
        manila.configure(settings)
        manila.run("manila-manage", "db", "sync")
        manila.start("manila-scheduler")
        manila.start("manila-share")
        # Manila would read arguments of this program as its own.
        web_server = f'wsgi_app = "manila.wsgi.api:application"\nbind = "127.0.0.1:{PORT}"\n'
        (workspace / "gunicorn.conf.py").write_text(web_server)
        yield manila.start("gunicorn", port=PORT)


def register(cloud: CloudProcess) -> configparser.ConfigParser:
    """Register Manila's user with the cloud; returns the settings by which Manila trusts the cloud."""
    account = Registration(cloud.client("kilonova")).create_service_user("manila", "service")
    auth_url = cloud.endpoints["auth_url"]
    login = {**credentials(auth_url, account), "project_name": "service", "project_domain_id": "default"}
    settings = configparser.ConfigParser(interpolation=None)
    settings.read_dict(
        {
            "DEFAULT": {
                "auth_strategy": "keystone",
                "enabled_share_backends": "dummy",
                "enabled_share_protocols": "NFS",
                "default_share_type": "default",
            },
            "dummy": {
                "share_backend_name": "dummy",
                "share_driver": "manila.tests.share.drivers.dummy.DummyDriver",
                "driver_handles_share_servers": "False",
            },
            "keystone_authtoken": {**login, "www_authenticate_uri": auth_url},
        }
    )
    return settings


SUITE = ManilaSuite("manila", is_default=False, options=("--hosts", "1"), settings={"KILONOVA_SHARE__URL": URL})
