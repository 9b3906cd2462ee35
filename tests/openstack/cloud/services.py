"""The processes of a cloud: how each is started, and when it answers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.openstack.cloud.install import postgresql_directory, search_path
from tests.openstack.cloud.processes import is_open
from tests.openstack.cloud.settings import SCRIPTS, Settings

Command = list[str | Path]
Probe = Callable[[], bool]
ANSWER_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Service:
    """One process."""

    command: Callable[[Settings], Command]
    # Called before the start. It returns a function that tells whether the process answers.
    probe: Callable[[Settings], Probe]
    environ: Callable[[Settings], dict[str, str]] = field(default=lambda settings: {})
    ports: tuple[str, ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM


def as_account(name: str, command: Command) -> Command:
    """Run a command by another account if this is root: PostgreSQL and MariaDB do not start as root."""
    if os.geteuid() != 0:
        return command
    return ["setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups", *command]


def program(name: str) -> str:
    """The path of a program of the system."""
    if path := shutil.which(name, path=search_path()):
        return path
    raise FileNotFoundError(name)


def postgresql_program(name: str) -> Path:
    directory = postgresql_directory()
    assert directory is not None
    return directory / name


def psql(settings: Settings, statements: str, database: str = "postgres") -> str:
    """Run statements as the superuser and return what they print."""
    command: Command = [postgresql_program("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database]
    address = ["-h", "127.0.0.1", "-p", str(settings.port("postgres")), "-U", "postgres"]
    ended = subprocess.run([*command, *address], input=statements, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr)
    return ended.stdout


def _answers_http(url: str) -> bool:
    """Whether the service answers, with any status below 500."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False


def _http(name: str, path: str = "/") -> Callable[[Settings], Probe]:
    return lambda settings: partial(_answers_http, settings.url(name) + path)


def _port(name: str) -> Callable[[Settings], Probe]:
    return lambda settings: partial(is_open, settings.port(name))


def _postgres_command(settings: Settings) -> Command:
    data = settings.state / "postgres/data"
    # A killed server leaves its process id, which the next one respects until init has reaped the process.
    (data / "postmaster.pid").unlink(missing_ok=True)
    return as_account("postgres", [postgresql_program("postgres"), "-D", data])


def _postgres(settings: Settings) -> Probe:
    command: Command = [postgresql_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(settings.port("postgres"))]
    return lambda: subprocess.run(command, check=False).returncode == 0


def _cinder_report(name: str) -> Callable[[Settings], Probe]:
    """A process of Cinder without an API reports that it is up after its start. The reports are counted."""
    query = f"SELECT host, report_count FROM services WHERE \"binary\" = '{name}' AND NOT deleted"

    def reports(settings: Settings) -> set[str]:
        return {line for line in psql(settings, query, database="cinder").splitlines() if not line.endswith("|0")}

    def probe(settings: Settings) -> Probe:
        before = reports(settings)
        # The volume service reports for each back end.
        expected = 2 if settings.nfs and name == "cinder-volume" else 1
        return lambda: len(reports(settings) - before) >= expected

    return probe


def _uwsgi(name: str, module: str, *options: str) -> Callable[[Settings], Command]:
    """A WSGI application under uWSGI, which serves HTTP itself."""

    def command(settings: Settings) -> Command:
        arguments = [option.format(etc=settings.etc) for option in options]
        flags = ["--master", "--die-on-term", "--lazy-apps", "--need-app", "--enable-threads", "--thunder-lock"]
        limits = ["--processes", "1", "--threads", "8", "--buffer-size", "65535", "--listen", "100"]
        # uWSGI closes each connection, and HTTP/1.1 clients must know it.
        answers = ["--disable-logging", "--add-header", "Connection: close"]
        address = ["--http-socket", f"127.0.0.1:{settings.port(name)}", "--procname-prefix", f"{name} "]
        return [
            settings.bin / "uwsgi",
            *flags,
            *limits,
            *answers,
            *address,
            "--module",
            f"{module}:application",
            *arguments,
        ]

    return command


def _rabbitmq_environ(settings: Settings) -> dict[str, str]:
    erlang = "-noinput -kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2"
    return {
        **_epmd_environ(settings),
        "RABBITMQ_ALLOW_INPUT": "1",
        "RABBITMQ_CONF_ENV_FILE": str(settings.etc / "rabbitmq-env.conf"),
        "RABBITMQ_NODENAME": f"cloud{settings.port_base}@localhost",
        "RABBITMQ_CONFIG_FILE": str(settings.etc / "rabbitmq.conf"),
        "RABBITMQ_DIST_PORT": str(settings.port("rabbitmq-dist")),
        "RABBITMQ_MNESIA_BASE": str(settings.state / "rabbitmq/mnesia"),
        "RABBITMQ_LOG_BASE": str(settings.log),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(settings.etc / "enabled_plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": erlang,
    }


def _epmd_environ(settings: Settings) -> dict[str, str]:
    return {
        "ERL_EPMD_PORT": str(settings.port("epmd")),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "HOME": str(settings.state / "rabbitmq/home"),
    }


def ovn_environ(settings: Settings) -> dict[str, str]:
    run, log = str(settings.state / "ovn"), str(settings.log)
    return {"OVN_RUNDIR": run, "OVS_RUNDIR": run, "OVN_LOGDIR": log, "OVS_LOGDIR": log}


def _ovn_database(name: str) -> Service:
    def command(settings: Settings) -> Command:
        remote = f"--remote=ptcp:{settings.port(f'ovn-{name}')}:127.0.0.1"
        control = f"--unixctl={settings.state}/ovn/{name}.ctl"
        return [program("ovsdb-server"), remote, control, "--no-chdir", settings.state / f"ovn/{name}.db"]

    return Service(command, _port(f"ovn-{name}"), ovn_environ, ports=(f"ovn-{name}",))


def _ovn_northd(settings: Settings) -> Command:
    databases = [f"--ovn{name}-db={settings.ovsdb(name)}" for name in ("nb", "sb")]
    return [program("ovn-northd"), *databases, f"--unixctl={settings.state}/ovn/northd.ctl", "--no-chdir"]


def _chassis(settings: Settings) -> Command:
    options = [
        "--control",
        str(settings.port("chassis")),
        "--plug",
        settings.plug,
        "--northbound",
        settings.ovsdb("nb"),
    ]
    return [settings.bin / "python", SCRIPTS / "chassis.py", *options, settings.ovsdb("sb"), *settings.hosts]


def _neutron_environ(settings: Settings) -> dict[str, str]:
    # Neutron keeps its start time in a temporary file that is named by the id of the parent process. A process with the
    # same id would find the old time, so the directory is emptied.
    folder = settings.state / "neutron/tmp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return {
        "TMPDIR": str(folder),
        "OS_NEUTRON_CONFIG_DIR": str(settings.etc / "neutron"),
        "OS_NEUTRON_CONFIG_FILES": "neutron-api.conf",
    }


def _cinder_process(name: str) -> Service:
    def command(settings: Settings) -> Command:
        return [settings.bin / name, "--config-file", settings.etc / f"cinder/{name}.conf"]

    def environ(settings: Settings) -> dict[str, str]:
        path = f"{settings.state / 'bin'}:{settings.bin}:{search_path()}"
        return {"PYTHONPATH": str(SCRIPTS), "PATH": path}

    return Service(command, _cinder_report(name), environ)


SERVICES = {
    "postgres": Service(
        _postgres_command,
        _postgres,
        ports=("postgres",),
        stop_signal=signal.SIGINT,  # ends connections
    ),
    "mariadb": Service(
        lambda settings: as_account("mysql", [program("mariadbd"), f"--defaults-file={settings.etc / 'my.cnf'}"]),
        _port("mariadb"),
        ports=("mariadb",),
    ),
    "memcached": Service(
        lambda settings: [
            program("memcached"),
            *("-u", "nobody", "-l", "127.0.0.1", "-p", str(settings.port("memcached")), "-m", "64"),
        ],
        _port("memcached"),
        ports=("memcached",),
    ),
    "epmd": Service(lambda settings: [program("epmd")], _port("epmd"), _epmd_environ, ports=("epmd",)),
    "rabbitmq": Service(
        lambda settings: ["/usr/lib/rabbitmq/bin/rabbitmq-server"],
        _port("rabbitmq"),
        _rabbitmq_environ,
        ports=("rabbitmq", "rabbitmq-dist"),
    ),
    "ovn-nb": _ovn_database("nb"),
    "ovn-sb": _ovn_database("sb"),
    "ovn-northd": Service(_ovn_northd, lambda settings: lambda: True, ovn_environ),
    "chassis": Service(_chassis, _port("chassis"), ports=("chassis",)),
    "keystone": Service(
        _uwsgi("keystone", "keystone.wsgi.api"),
        _http("keystone", "/v3"),
        lambda settings: {"OS_KEYSTONE_CONFIG_DIR": str(settings.etc / "keystone")},
        ports=("keystone",),
    ),
    "glance": Service(
        # uWSGI's limits (1 MiB and 4 s for a chunk) are too low for uploads from Cinder.
        _uwsgi(
            "glance",
            "glance.wsgi.api",
            *("--chunked-input-limit", "67108864", "--chunked-input-timeout", "60", "--socket-timeout", "60"),
        ),
        _http("glance"),
        lambda settings: {"OS_GLANCE_CONFIG_DIR": str(settings.etc / "glance")},
        ports=("glance",),
    ),
    "neutron": Service(_uwsgi("neutron", "neutron.wsgi.api"), _http("neutron"), _neutron_environ, ports=("neutron",)),
    "cinder-api": Service(
        # The application reads the name of its configuration file from the command line only.
        _uwsgi("cinder-api", "cinder.wsgi.api", "--pyargv", "--config-file {etc}/cinder/cinder-api.conf"),
        _http("cinder-api"),
        # Validates the settings of each back end.
        lambda settings: {"PYTHONPATH": str(SCRIPTS)},
        ports=("cinder-api",),
    ),
    "cinder-scheduler": _cinder_process("cinder-scheduler"),
    "cinder-volume": _cinder_process("cinder-volume"),
}
# Names for several processes.
GROUPS = {"cinder": ("cinder-api", "cinder-scheduler", "cinder-volume")}
# Stopped last, because the services say goodbye to them.
STORES = ("rabbitmq", "epmd", "memcached", "ovn-northd", "ovn-sb", "ovn-nb", "mariadb", "postgres")


def members(service: str) -> tuple[str, ...]:
    """The processes of a service."""
    if service in GROUPS:
        return GROUPS[service]
    if service in SERVICES:
        return (service,)
    raise ValueError(f"no service {service}; there are {', '.join([*GROUPS, *SERVICES])}")


def environ(settings: Settings, name: str) -> dict[str, str]:
    """The environment of a process. Variables of clients in this environment concern other clouds."""
    inherited = {
        variable: value
        for variable, value in os.environ.items()
        if not variable.startswith(("OS_", "PYTHON", "KILONOVA_"))
    }
    return {**inherited, "PATH": search_path(), **SERVICES[name].environ(settings)}
