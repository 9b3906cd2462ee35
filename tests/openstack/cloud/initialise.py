"""The steps of a first start. Each leaves a stamp and is left out by later starts."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.openstack.cloud.configuration import DATABASE_USER, NFS_SHARE, nfs_mount, postgresql, write_script
from tests.openstack.cloud.processes import CloudError
from tests.openstack.cloud.services import Command, as_account, ovn_environ, postgresql_program, program, psql
from tests.openstack.cloud.settings import PASSWORD, REGION, Settings

DIRECTORIES = (
    *("run", "log", "etc", "stamp", "ovn", "postgres", "mariadb", "keystone", "rabbitmq/mnesia", "rabbitmq/home"),
    *(f"glance/{name}" for name in ("fast", "slow", "staging", "tasks", "lock")),
    "neutron/lock",
    *(f"cinder/{name}" for name in ("lock", "conversion", "coordination", "volumes", "mnt")),
)
MARIADB_INIT = f"""\
CREATE DATABASE IF NOT EXISTS neutron;
GRANT ALL ON neutron.* TO '{DATABASE_USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
"""
POSTGRESQL_INIT = f"""\
CREATE ROLE {DATABASE_USER} LOGIN PASSWORD '{PASSWORD}';
CREATE DATABASE keystone OWNER {DATABASE_USER};
CREATE DATABASE glance OWNER {DATABASE_USER};
CREATE DATABASE cinder OWNER {DATABASE_USER};
"""


def make_directories(settings: Settings) -> None:
    for name in DIRECTORIES:
        (settings.state / name).mkdir(parents=True, exist_ok=True)
    settings.state.chmod(0o755)


def once(settings: Settings, name: str, step: Callable[[Settings], None]) -> None:
    """Run a step unless it was completed by a former start."""
    stamp = settings.state / "stamp" / name
    if not stamp.exists():
        step(settings)
        stamp.touch()


def postgres_cluster(settings: Settings) -> None:
    folder = settings.state / "postgres"
    _make_empty(folder, "postgres")
    options: Command = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    _run(settings, "postgres", as_account("postgres", [postgresql_program("initdb"), "-D", folder / "data", *options]))
    (folder / "data/postgresql.conf").write_text(postgresql(settings))


def postgres_databases(settings: Settings) -> None:
    if not psql(settings, f"SELECT 1 FROM pg_roles WHERE rolname = '{DATABASE_USER}'"):
        psql(settings, POSTGRESQL_INIT)


def mariadb_data(settings: Settings) -> None:
    folder = settings.state / "mariadb"
    _make_empty(folder, "mysql")
    # The server runs this at each start.
    (folder / "init.sql").write_text(MARIADB_INIT)
    options = [f"--datadir={folder}/data", "--auth-root-authentication-method=normal", "--skip-test-db"]
    _run(settings, "mariadb", as_account("mysql", [program("mariadb-install-db"), "--no-defaults", *options]))


def ovn_databases(settings: Settings) -> None:
    for name in ("nb", "sb"):
        path = settings.state / f"ovn/{name}.db"
        path.unlink(missing_ok=True)
        _run(settings, "ovn", [program("ovsdb-tool"), "create", path, f"/usr/share/ovn/ovn-{name}.ovsschema"])


def ovn_rows(settings: Settings) -> None:
    for name in ("nb", "sb"):
        _run(
            settings, "ovn", [program(f"ovn-{name}ctl"), f"--db={settings.ovsdb(name)}", "init"], ovn_environ(settings)
        )


def keystone_database(settings: Settings) -> None:
    # As `keystone-manage fernet_setup` and `credential_setup` do, which need two seconds each.
    for name in ("fernet-keys", "credential-keys"):
        folder = settings.state / "keystone" / name
        folder.mkdir(mode=0o700, exist_ok=True)
        for key in ("0", "1"):
            (folder / key).write_bytes(base64.urlsafe_b64encode(os.urandom(32)))
            (folder / key).chmod(0o600)
    manage: Command = [settings.bin / "keystone-manage", "--config-file", settings.etc / "keystone/keystone.conf"]
    _run(settings, "keystone", [*manage, "db_sync"])
    url = settings.endpoints["identity"]
    urls = [argument for name in ("public", "internal", "admin") for argument in (f"--bootstrap-{name}-url", url)]
    region = ["--bootstrap-region-id", REGION]
    _run(settings, "keystone", [*manage, "bootstrap", "--bootstrap-password", PASSWORD, *region, *urls])


def glance_database(settings: Settings) -> None:
    _run(settings, "glance", [settings.bin / "glance-manage", "--config-dir", settings.etc / "glance", "db_sync"])


def neutron_database(settings: Settings) -> None:
    config: Command = ["--config-file", settings.etc / "neutron/neutron-api.conf"]
    _run(settings, "neutron", [settings.bin / "neutron-db-manage", *config, "upgrade", "heads"])


def cinder_database(settings: Settings) -> None:
    config: Command = ["--config-file", settings.etc / "cinder/cinder-api.conf"]
    _run(settings, "cinder", [settings.bin / "cinder-manage", *config, "db", "sync"])


def mount_nfs(settings: Settings) -> None:
    """Mount the share of the NFS back end.

    The driver only looks for its mount point among the mounts. A kernel without NFS has overlay mounts, so one with the
    share's name is made, and the command mount.nfs must exist but is not called.
    """
    mount = nfs_mount(settings)
    folders = {name: settings.state / "cinder/nfs" / name for name in ("lower", "upper", "work")}
    for folder in (mount, *folders.values()):
        folder.mkdir(parents=True, exist_ok=True)
    if not mount.is_mount():
        options = ",".join(f"{name}dir={folder}" for name, folder in folders.items())
        _run(settings, "nfs", ["mount", "-t", "overlay", NFS_SHARE, "-o", options, mount])
    write_script(settings.state / "bin/mount.nfs", "#!/bin/sh\n")


def unmount_nfs(settings: Settings) -> None:
    if nfs_mount(settings).is_mount():
        _run(settings, "nfs", ["umount", nfs_mount(settings)])


def _make_empty(folder: Path, account: str) -> None:
    """Make an empty directory of an account, which must reach it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if os.geteuid() != 0:
        return
    shutil.chown(folder, account, account)
    if subprocess.run(as_account(account, ["test", "-x", folder]), check=False).returncode != 0:
        raise CloudError(f"account {account} cannot enter {folder}; set OPENSTACK_CLOUD_STATE to another directory")


def _run(settings: Settings, name: str, command: Command, environ: Mapping[str, str] | None = None) -> None:
    """Run a command whose output goes to the log of first starts."""
    log = settings.log / f"init-{name}.out"
    inherited = {variable: value for variable, value in os.environ.items() if not variable.startswith("OS_")}
    with log.open("ab") as output:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**inherited, **(environ or {})},
            check=False,
        )
    if ended.returncode != 0:
        raise CloudError(f"{Path(command[0]).name} failed, see {log}")
