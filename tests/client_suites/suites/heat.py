"""Heat as PyPI ships it, with trusts: stacks from their creation to their deletion."""

from __future__ import annotations

import configparser
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.client_suites.heat.scenario import HeatScenario
from tests.client_suites.services.installation import Installation
from tests.client_suites.services.registration import Registration, credentials
from tests.client_suites.suite import RESULTS_DIRECTORY, Outcome, Suite
from tests.support.cloud_process import CloudProcess
from tests.support.ports import free_port

PACKAGES = ("openstack-heat", "psycopg2-binary")


@dataclass(frozen=True)
class HeatSuite(Suite):
    def run_tests(self, cloud: CloudProcess, workspace: Path, only: str) -> dict[str, Outcome]:
        with running_heat(cloud, workspace) as url:
            return HeatScenario(cloud, url).run(RESULTS_DIRECTORY / "heat.output", only)


@contextmanager
def running_heat(cloud: CloudProcess, workspace: Path) -> Iterator[str]:
    """Heat beside the cloud, registered in its catalogue; yields the URL of its API."""
    port, signal_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    with Installation("heat", PACKAGES, workspace) as heat:
        settings = register(cloud, url, f"http://127.0.0.1:{signal_port}")
        files = heat.directory / "etc" / "heat"
        settings["paste_deploy"] = {"api_paste_config": str(files / "api-paste.ini")}
        settings["DEFAULT"]["environment_dir"] = str(files / "environment.d")
        settings["DEFAULT"]["template_dir"] = str(files / "templates")
        heat.configure(settings)
        heat.run("heat-manage", "db_sync")
        heat.start("heat-engine", ready="Starting engine_worker")
        heat.start_api("heat-wsgi-api", port)
        heat.start_api("heat-wsgi-api-cfn", signal_port)
        yield url


def register(cloud: CloudProcess, url: str, signal_url: str) -> configparser.ConfigParser:
    """Register Heat with the cloud; returns the settings by which Heat uses it."""
    registration = Registration(cloud.client("kilonova"))
    account = registration.create_service_user("heat", "service")
    registration.create_service("orchestration", "heat", f"{url}/v1/$(project_id)s")
    registration.create_service("cloudformation", "heat-cfn", f"{signal_url}/v1")
    registration.create_role("heat_stack_user")
    domain_id = registration.create("domain", name="heat")
    domain_admin = registration.create_user("heat_domain_admin", domain_id)
    registration.assign(f"domains/{domain_id}", domain_admin.user_id, "admin")
    auth_url = cloud.endpoints["auth_url"]
    login = credentials(auth_url, account)
    scoped_login = {**login, "project_name": "service", "project_domain_id": "default"}
    settings = configparser.ConfigParser(interpolation=None)
    settings.read_dict(
        {
            "DEFAULT": {
                "auth_encryption_key": secrets.token_hex(16),
                "heat_metadata_server_url": signal_url,
                "heat_waitcondition_server_url": f"{signal_url}/v1/waitcondition",
                "stack_user_domain_id": domain_id,
                "stack_domain_admin": domain_admin.name,
                "stack_domain_admin_password": domain_admin.password,
                "num_engine_workers": "2",
            },
            "keystone_authtoken": {**scoped_login, "www_authenticate_uri": auth_url},
            "ec2authtoken": scoped_login,
            "trustee": login,
            "clients_keystone": {"auth_uri": auth_url},
        }
    )
    return settings


# The scenario waits for the end of a token.
SUITE = HeatSuite("heat", is_default=False, settings={"KILONOVA_IDENTITY__TOKEN_SECONDS": "60"})
