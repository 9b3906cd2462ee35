"""Watcher as PyPI ships it: audits of a cloud with two zones, and their action plans carried out."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.client_suites.services.installation import Installation
from tests.client_suites.services.registration import Registration, credentials
from tests.client_suites.suite import RESULTS_DIRECTORY, Outcome, Suite
from tests.client_suites.watcher.scenario import WatcherScenario
from tests.support.cloud_process import CloudProcess
from tests.support.ports import free_port

PACKAGES = ("python-watcher", "psycopg2-binary")
# How often Watcher reads the cloud. Audits wait for the next time.
COLLECTION_PERIOD_SECONDS = 2


@dataclass(frozen=True)
class WatcherSuite(Suite):
    def run_tests(self, cloud: CloudProcess, workspace: Path, only: str) -> dict[str, Outcome]:
        with running_watcher(cloud, workspace) as url:
            return WatcherScenario(cloud, url).run(RESULTS_DIRECTORY / "watcher.output", only)


@contextmanager
def running_watcher(cloud: CloudProcess, workspace: Path) -> Iterator[str]:
    """Watcher beside the cloud, registered in its catalogue; yields the URL of its API."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Installation("watcher", PACKAGES, workspace) as watcher:
        settings = register(cloud, url)
        settings["DEFAULT"]["state_path"] = str(workspace)
        settings["oslo_concurrency"] = {"lock_path": str(workspace)}
        watcher.configure(settings)
        watcher.run("watcher-db-manage", "upgrade")
        for program in ("watcher-decision-engine", "watcher-applier"):
            watcher.start(program, ready=f"Leader election completed for {program}")
        watcher.start_api("watcher-api-wsgi", port)
        yield url


def register(cloud: CloudProcess, url: str) -> configparser.ConfigParser:
    """Register Watcher with the cloud; returns the settings by which Watcher uses it."""
    registration = Registration(cloud.client("kilonova"))
    account = registration.create_service_user("watcher", "admin")
    registration.create_service("infra-optim", "watcher", url)
    auth_url = cloud.endpoints["auth_url"]
    login = {**credentials(auth_url, account), "project_name": "service", "project_domain_id": "default"}
    settings = configparser.ConfigParser(interpolation=None)
    settings.read_dict(
        {
            "DEFAULT": {"rpc_response_timeout": "10"},
            "keystone_authtoken": {**login, "www_authenticate_uri": auth_url},
            "watcher_clients_auth": login,
            "watcher_cluster_data_model_collectors.compute": {"period": str(COLLECTION_PERIOD_SECONDS)},
            "watcher_cluster_data_model_collectors.storage": {"period": str(COLLECTION_PERIOD_SECONDS)},
            # The model has pinned zones and scheduler hints only with a version that shows them.
            "nova": {"migration_interval": "0.5", "api_version": "2.100"},
            "compute_model": {"enable_extended_attributes": "true"},
        }
    )
    return settings


SUITE = WatcherSuite("watcher", is_default=False, options=("--hosts", "4", "--zones", "east,west"))
