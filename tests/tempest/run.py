"""Runs tempest against a new `kilonova up`.

    python tests/tempest/run.py            the tests of must-pass.txt; fails if one of them does not pass
    python tests/tempest/run.py --all      all tests of the APIs of compute, network, volume; adds newly passing ones
    python tests/tempest/run.py --only RE  tests whose names match the expression; adds newly passing ones, too

    python tests/tempest/run.py --recheck  as the first; a failed test may pass three times alone instead
    python tests/tempest/run.py --real     the tests of must-pass-real.txt, beside real OpenStack services

A list only grows: a test leaves it by hand, with the reason in the commit.
"""

from __future__ import annotations

import argparse
import configparser
import csv
import io
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.support.cloud_process import Client, CloudProcess  # noqa: E402
from tests.support.recheck import MAX_FLAKY_TESTS, RUNS, Flaky, record_flaky  # noqa: E402

MUST_PASS = HERE / "must-pass.txt"
# The same for a cloud whose other services are real: tests of the compute API only.
MUST_PASS_REAL = HERE / "must-pass-real.txt"
# The document of the compute tests that cannot pass, with the reason of each.
CANNOT_PASS_DOCUMENT = HERE.parents[1] / "docs" / "api" / "tempest.md"
COMPUTE = r"^tempest\.(serial_tests\.)?api\.compute\."
# The outcome of each test and the subunit stream are kept here.
RESULTS_DIRECTORY = HERE.parents[1] / ".tempest"
EVERYTHING = r"^tempest\.(serial_tests\.)?api\.(compute|network|volume)\."
MULTIATTACH = "multiattach"
# Tempest accepts whole seconds only, and most operations take less than 0.1 s.
POLL_INTERVAL_SECONDS = "0"
# Some tests check servers during a snapshot, and may be slow.
SLOW_SNAPSHOTS = {"KILONOVA_SIM__LATENCY__SNAPSHOT": "2"}
# Tests mostly wait: four keep two processors busy.
CONCURRENCY = "4"
# Timeout of tempest's waits, long enough for a busy machine.
TIMEOUT_SECONDS = "300"
# The tests of WITH_OTHER_SETTINGS need these settings and no shared network. Many other tests fail with them, so the
# two groups run one after the other.
OTHER_SETTINGS = {"compute": {"fixed_network_name": "public", "min_compute_nodes": "1"}}
WITH_OTHER_SETTINGS = [
    "tempest.api.compute.admin.test_auto_allocate_network.AutoAllocateNetworkTest.test_server_create_no_allocate",
    "tempest.api.compute.admin.test_auto_allocate_network.AutoAllocateNetworkTest.test_server_multi_create_auto_allocate",
    "tempest.api.compute.admin.test_networks.NetworksTest.test_list_all_networks",
    "tempest.api.compute.admin.test_volume_swap.TestMultiAttachVolumeSwap.test_volume_swap_with_multiattach",
]
BIN = Path(os.environ.get("TEMPEST_BIN", Path(sys.executable).parent)).absolute()


def settings(admin: Client, workspace: Path) -> configparser.ConfigParser:
    """Tempest's configuration for the administrator's cloud, with missing features disabled."""
    images = admin.get("image", "/images?visibility=public&disk_format=raw").json()["images"]
    networks = admin.get("network", "/networks").json()["networks"]
    external = next(network["id"] for network in networks if network["router:external"])
    conf = configparser.ConfigParser()
    conf.read_dict(
        {
            "DEFAULT": {"log_file": "tempest.log", "log_dir": str(workspace)},
            "oslo_concurrency": {"lock_path": str(workspace / "locks")},
            "auth": {
                "use_dynamic_credentials": "true",
                "admin_username": "admin",
                "admin_password": admin.auth["password"],
                "admin_project_name": "admin",
                "admin_domain_name": "Default",
                "create_isolated_networks": "true",
                "tempest_roles": "member",
            },
            "identity": {"auth_version": "v3", "uri_v3": admin.endpoints["auth_url"], "region": "RegionOne"},
            "identity-feature-enabled": {
                "api_v2": "false",
                "trust": "true",
                "application_credentials": "true",
                "access_rules": "true",
            },
            "service_available": {
                "nova": "true",
                "glance": "true",
                "neutron": "true",
                "cinder": "true",
                "swift": "false",
                "horizon": "false",
            },
            "compute": {
                "image_ref": images[0]["id"],
                "image_ref_alt": images[-1]["id"],
                "flavor_ref": "1",
                "flavor_ref_alt": "2",
                "max_microversion": "latest",
                "min_compute_nodes": "2",
                "build_interval": POLL_INTERVAL_SECONDS,
                "build_timeout": TIMEOUT_SECONDS,
                "hypervisor_type": "kilonova-sim",
                # Servers keep the certificates that their images must be signed with.
                "certified_image_ref": images[0]["id"],
                "certified_image_trusted_certs": "certificate",
            },
            "compute-feature-enabled": {
                "resize": "true",
                "cold_migration": "true",
                "live_migration": "true",
                "live_migrate_back_and_forth": "true",
                "block_migration_for_live_migration": "true",
                "volume_backed_live_migration": "true",
                "shelve": "true",
                "shelve_migrate": "true",
                "pause": "true",
                "suspend": "true",
                "snapshot": "true",
                "rescue": "true",
                "stable_rescue": "true",
                "interface_attach": "true",
                "change_password": "true",
                "console_output": "true",
                "vnc_console": "true",
                "spice_console": "false",
                "serial_console": "false",
                "personality": "true",
                "swap_volume": "true",
                "attach_encrypted_volume": "false",
                "volume_multiattach": "true",
                "metadata_service": "false",
                "config_drive": "true",
                "enable_instance_password": "true",
                "hostname_fqdn_sanitization": "true",
                "scheduler_enabled_filters": "all",
                "nova_policy_roles": "admin,manager,member,reader",
            },
            # The policy rules are those of current releases, with reader and manager roles.
            "enforce_scope": {"nova": "true"},
            "volume": {
                "catalog_type": "block-storage",
                "max_microversion": "latest",
                "build_interval": POLL_INTERVAL_SECONDS,
                "build_timeout": TIMEOUT_SECONDS,
                "storage_protocol": "kilonova_file",
                "vendor_name": "Kilonova",
                "volume_type_multiattach": MULTIATTACH,
            },
            "volume-feature-enabled": {
                "backup": "false",
                "clone": "true",
                "snapshot": "true",
                "extend_attached_volume": "true",
                "extend_volume_with_snapshot": "true",
                "enable_volume_image_dep_tests": "true",
            },
            "network": {
                "public_network_id": external,
                "floating_network_name": "public",
                "project_network_cidr": "10.100.0.0/16",
                "build_interval": POLL_INTERVAL_SECONDS,
            },
            "validation": {"run_validation": "false", "connect_method": "fixed"},
            "image": {"build_interval": POLL_INTERVAL_SECONDS},
        }
    )
    return conf


def create_second_image(admin: Client) -> None:
    """Create a second image, which some tests need."""
    body = {"name": "cirros-sim-alt", "disk_format": "raw", "container_format": "bare", "visibility": "public"}
    image = admin.post("image", "/images", body).json()
    answer = admin.request("PUT", "image", f"/images/{image['id']}/file", content=b"\0" * 65536)
    assert answer.status == 204, answer.body


@contextmanager
def hidden_networks(admin: Client) -> Iterator[None]:
    """Stop sharing networks: they are allocated automatically only where a project sees none."""
    networks = admin.get("network", "/networks?shared=true").json()["networks"]

    def share(shared: bool) -> None:
        for network in networks:
            answer = admin.put("network", f"/networks/{network['id']}", {"network": {"shared": shared}})
            assert answer.status == 200, answer.body

    share(False)
    try:
        yield
    finally:
        share(True)


def create_multiattach_type(admin: Client) -> None:
    body = {"volume_type": {"name": MULTIATTACH, "extra_specs": {"multiattach": "<is> True"}}}
    answer = admin.post("volume", "/types", body)
    assert answer.status == 200, answer.body


def run(admin: Client, workspace: Path, selected: list[str] | str) -> dict[str, str]:
    """Run the tests of a list, or those that match an expression; returns the outcome by name."""
    create_workspace(workspace)
    conf = settings(admin, workspace)
    if isinstance(selected, str):
        others = [name for name in WITH_OTHER_SETTINGS if re.search(selected, name)]
        selection = ["--regex", selected, "--exclude-regex", _expression(WITH_OTHER_SETTINGS)]
    else:
        others = [name for name in WITH_OTHER_SETTINGS if name in selected]
        (workspace / "chosen.txt").write_text(
            "".join(f"{_expression([one])}\n" for one in selected if one not in others)
        )
        selection = ["--include-list", "chosen.txt"]
    stream = run_tempest(workspace, conf, selection) if others != selected else b""
    if others:
        with hidden_networks(admin):
            conf.read_dict(OTHER_SETTINGS)
            stream += run_tempest(workspace, conf, ["--regex", _expression(others)])
    RESULTS_DIRECTORY.mkdir(exist_ok=True)
    (RESULTS_DIRECTORY / "last.subunit").write_bytes(stream)
    table = subprocess.run(
        [BIN / "subunit2csv", "--no-passthrough"], input=stream, stdout=subprocess.PIPE, check=False
    ).stdout
    return {row["test"].partition("[")[0]: row["status"] for row in csv.DictReader(io.StringIO(table.decode()))}


def create_workspace(path: Path) -> Path:
    register = str(path.with_suffix(".yaml"))  # by default tempest writes to the home directory
    subprocess.run([BIN / "tempest", "init", "--workspace-path", register, str(path)], check=True)
    return path


def run_tempest(workspace: Path, conf: configparser.ConfigParser, selection: list[str]) -> bytes:
    """Run tests with this configuration. Returns the subunit stream of their outcomes."""
    with (workspace / "etc" / "tempest.conf").open("w") as file:
        conf.write(file)
    command = [BIN / "tempest", "run", *selection, "--concurrency", CONCURRENCY, "--subunit"]
    return subprocess.run(command, cwd=workspace, stdout=subprocess.PIPE, check=False).stdout


def _expression(names: list[str]) -> str:
    """Matches the tests. A test's full name ends with its id and tags in brackets, which `names` do not have."""
    return f"^({'|'.join(map(re.escape, names))})(\\[|$)"


def unexplained() -> list[str]:
    """The compute tests that are neither in must-pass.txt nor in the document of tests that cannot pass."""
    with tempfile.TemporaryDirectory() as directory:
        workspace = create_workspace(Path(directory) / "tempest")
        command = [BIN / "tempest", "run", "--list-tests", "--regex", COMPUTE]
        listed = subprocess.run(command, cwd=workspace, stdout=subprocess.PIPE, check=True).stdout.decode()
    names = {line.partition("[")[0] for line in listed.splitlines() if line.startswith("tempest.")}
    assert names, "tempest lists no tests of compute"
    return sorted(
        names - set(read_must_pass()) - set(re.findall(r"`(tempest\.[\w.]+)`", CANNOT_PASS_DOCUMENT.read_text()))
    )


def read_must_pass(file: Path = MUST_PASS) -> list[str]:
    return file.read_text().split() if file.exists() else []


def add_to_must_pass(passed: set[str], file: Path) -> None:
    """Add tests to the list. It is read again, because another run may have changed it."""
    before = set(read_must_pass(file))
    file.write_text("".join(f"{name}\n" for name in sorted(before | passed)))
    print(f"added {len(passed - before)} tests to {file.name}")


@contextmanager
def built_in_cloud(directory: Path) -> Iterator[Client]:
    """A new cloud with built-in services."""
    with CloudProcess(directory / "data", "--hosts", "4", environ=SLOW_SNAPSHOTS) as cloud:
        admin = cloud.client("kilonova")
        create_second_image(admin)
        create_multiattach_type(admin)
        yield admin


@contextmanager
def real_cloud(directory: Path) -> Iterator[Client]:
    """A new compute service beside real services, which are stopped at the end unless they ran before."""
    from tests.openstack.cloud import Cloud
    from tests.openstack.kilonova_process import Kilonova

    services = Cloud()
    ran = services.is_running()
    try:
        services.start()
        process = Kilonova(services, directory / "data", environ=SLOW_SNAPSHOTS)
        process.register()
        # Tests that name no network need one of their project alone.
        with process, hidden_networks(process.admin):
            yield process.admin
    finally:
        if not ran:
            services.stop()


def run_cloud(selected: list[str] | str, *, real: bool = False) -> dict[str, str]:
    """Run tests against a new cloud."""
    with tempfile.TemporaryDirectory() as directory:
        with (real_cloud if real else built_in_cloud)(Path(directory)) as admin:
            return run(admin, Path(directory) / "tempest", selected)


def recheck(failed: dict[str, str], *, real: bool) -> list[Flaky]:
    """The failed tests that pass in all runs alone. `failed` has their outcomes."""
    if len(failed) > MAX_FLAKY_TESTS:
        return []
    return [
        Flaky(name, f"tempest: {outcome}")
        for name, outcome in failed.items()
        if all(run_cloud([name], real=real).get(name) == "success" for _ in range(RUNS))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_const", dest="only", const=EVERYTHING)
    parser.add_argument("--only", metavar="RE")
    parser.add_argument("--recheck", action="store_true")
    parser.add_argument("--real", action="store_true")
    options = parser.parse_args()
    if options.real and options.only == EVERYTHING:
        options.only = COMPUTE
    file = MUST_PASS_REAL if options.real else MUST_PASS
    must_pass = read_must_pass(file)
    found = run_cloud(options.only or must_pass, real=options.real)
    passed = {name for name, status in found.items() if status == "success"}
    expected = [name for name in must_pass if options.only is None or re.search(options.only, name)]
    missing = sorted(set(expected) - passed)
    if options.only:
        add_to_must_pass(passed, file)
    lines = sorted(f"{status} {name}" for name, status in found.items())
    (RESULTS_DIRECTORY / "last.txt").write_text("\n".join(lines) + "\n")
    failed = {name: found.get(name, "not run") for name in missing}
    flaky = recheck(failed, real=options.real) if options.recheck else []
    record_flaky(flaky)
    for each in flaky:
        print(f"FLAKY {each}")
        missing.remove(each.test)
    unknown = [] if options.only or options.real else unexplained()
    for name in unknown:
        print(f"UNEXPLAINED {name}: neither in {MUST_PASS.name} nor in {CANNOT_PASS_DOCUMENT.name}")
    for name in missing:
        print(f"FAILED {name}: {found.get(name, 'not run')}")
    counts = Counter(found.values())
    print(f"tempest: {dict(counts)} of {sum(counts.values())}")
    print(f"{len(expected) - len(missing)} passed, {len(missing)} failed")
    return 1 if missing or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
