"""Installs what the services need: Debian packages, and Python packages in an environment of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.openstack.cloud.processes import CloudError
from tests.openstack.cloud.settings import ROOT, Settings

# A command by the Debian package that has it.
COMMANDS = {
    "mariadbd": "mariadb-server",
    "rabbitmqctl": "rabbitmq-server",
    "memcached": "memcached",
    "qemu-img": "qemu-utils",
    "ovn-northd": "ovn-central",
    "ovsdb-server": "openvswitch-common",
    "setpriv": "util-linux",
    # uWSGI is built from source.
    "gcc": "gcc",
}
# The majors that were tested. Older ones lack what is tested here, and newer ones may lose what is configured here.
PYTHON_PACKAGES = (
    "setuptools<81",  # which still has pkg_resources
    "wheel",
    "keystone>=30,<31",
    "glance>=33,<34",
    "neutron>=29,<30",
    "cinder>=29,<30",
    "sqlalchemy<2.1",
    "psycopg2-binary",
    "pymysql",
    "python-memcached",
    "uwsgi",
)
SYSTEM_PATHS = "/usr/sbin:/sbin"
POLICY = Path("/usr/sbin/policy-rc.d")
_READY = ".ready"


def search_path() -> str:
    """The path for commands. Servers are in directories that only the path of root has."""
    return f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATHS}"


def postgresql_directory() -> Path | None:
    """The directory with the commands of the newest PostgreSQL."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in found), key=lambda path: float(path.parent.name), default=None)


def install_missing(settings: Settings) -> None:
    """Install what is missing. It takes two minutes the first time."""
    settings.log.mkdir(parents=True, exist_ok=True)
    _install_debian_packages()
    if not settings.venv_is_given:
        _install_python_packages(settings)


def _missing_packages() -> list[str]:
    missing = [package for command, package in COMMANDS.items() if not shutil.which(command, path=search_path())]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("python3-dev")
    if postgresql_directory() is None:
        missing.append("postgresql")
    return missing


def _install_debian_packages() -> None:
    missing = _missing_packages()
    if not missing:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as apt_config, _services_stay_stopped():
        apt_config.write('DPkg::Lock::Timeout "300";\n')
        apt_config.flush()
        environ = {**os.environ, "APT_CONFIG": apt_config.name, "RUNLEVEL": "1"}
        subprocess.run([ROOT / "tools/packages", *missing], env=environ, check=True)
    if still := [name for name in COMMANDS if not shutil.which(name, path=search_path())]:
        raise CloudError(f"missing commands: {', '.join(still)}. On Debian: apt install {' '.join(missing)}")


@contextlib.contextmanager
def _services_stay_stopped() -> Iterator[None]:
    """Keep packages from starting their services: the cloud starts its own, on other ports."""
    if os.geteuid() != 0 or POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def _install_python_packages(settings: Settings) -> None:
    ready = settings.venv / _READY
    wanted = "\n".join(PYTHON_PACKAGES)
    if ready.exists() and ready.read_text() == wanted:
        return
    print(f"setting up {settings.venv} (once; a minute or two)", flush=True)
    ready.unlink(missing_ok=True)
    log = settings.log / "pip.log"
    with log.open("wb") as output:
        commands: tuple[list[str | Path], ...] = (
            [sys.executable, "-m", "venv", settings.venv],
            [settings.bin / "pip", "install", "--disable-pip-version-check", *PYTHON_PACKAGES],
        )
        for command in commands:
            if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode != 0:
                raise CloudError(f"the Python packages of OpenStack were not installed, see {log}")
    ready.write_text(wanted)
