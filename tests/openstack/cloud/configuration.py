"""Writes the configuration files of all services."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.openstack.cloud.settings import COMPUTE_USER, PASSWORD, REGION, Settings

Section = dict[str, object]
Sections = dict[str, Section]

NFS_SHARE = "127.0.0.1:/kilonova"
DATABASE_USER = "openstack"

# Cinder asks for root by `sudo cinder-rootwrap CONFIG COMMAND…`, also if it already is root, and sudo may be missing.
SUDO = """\
#!/bin/sh
case $1 in cinder-rootwrap) shift 2;; esac
exec "$@"
"""


def write_configuration(settings: Settings) -> None:
    for name in ("keystone", "glance", "neutron", "cinder"):
        (settings.etc / name).mkdir(parents=True, exist_ok=True)
    for path, sections in {
        "keystone/keystone.conf": keystone(settings),
        "glance/glance-api.conf": glance(settings),
        "neutron/neutron-api.conf": neutron(settings),
        **{
            f"cinder/{name}.conf": cinder(settings, name)
            for name in ("cinder-api", "cinder-scheduler", "cinder-volume")
        },
        "my.cnf": mariadb(settings),
    }.items():
        (settings.etc / path).write_text(ini(sections))
    shutil.copy(settings.venv / "etc/glance/glance-api-paste.ini", settings.etc / "glance")
    (settings.etc / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{settings.port('rabbitmq')}\n")
    for name in ("rabbitmq-env.conf", "enabled_plugins"):
        (settings.etc / name).write_text("")
    (settings.etc / "cinder/nfs_shares").write_text(f"{NFS_SHARE}\n")
    write_script(settings.state / "bin/sudo", SUDO)


def ini(sections: Sections) -> str:
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{name}={_text(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def nfs_mount(settings: Settings) -> Path:
    """The mount point of the NFS share, whose name is the MD5 sum of the share's."""
    return settings.state / "cinder/mnt" / hashlib.md5(NFS_SHARE.encode(), usedforsecurity=False).hexdigest()


def postgresql(settings: Settings) -> str:
    """Fast, and not safe if the machine crashes. A killed server loses nothing that it committed."""
    return f"""\
listen_addresses = '127.0.0.1'
port = {settings.port("postgres")}
unix_socket_directories = ''
max_connections = 400
shared_buffers = 128MB
fsync = off
full_page_writes = off
"""


def mariadb(settings: Settings) -> Sections:
    """Fast, and not safe if the machine crashes. A killed server loses nothing that it committed."""
    data = settings.state / "mariadb/data"
    return {
        "mysqld": {
            "datadir": data,
            # Relative to the data directory: the path of a socket must be short.
            "socket": "mariadb.sock",
            "pid-file": "mariadb.pid",
            "bind-address": "127.0.0.1",
            "port": settings.port("mariadb"),
            "init-file": settings.state / "mariadb/init.sql",
            "skip-name-resolve": 1,
            "skip-log-bin": 1,
            "max_connections": 400,
            "innodb_buffer_pool_size": "64M",
            # Commits are written at once, and flushed each second.
            "innodb_flush_log_at_trx_commit": 2,
            "performance_schema": "off",
            "character-set-server": "utf8mb4",
        }
    }


def keystone(settings: Settings) -> Sections:
    return {
        "DEFAULT": {"log_file": settings.log / "keystone.log"},
        "database": {"connection": _postgresql_url(settings, "keystone")},
        "token": {"provider": "fernet"},
        "fernet_tokens": {"key_repository": settings.state / "keystone/fernet-keys"},
        "credential": {"key_repository": settings.state / "keystone/credential-keys"},
        "cache": {
            "enabled": True,
            "backend": "dogpile.cache.memcached",
            "memcache_servers": f"127.0.0.1:{settings.port('memcached')}",
        },
    }


def glance(settings: Settings) -> Sections:
    files = settings.state / "glance"
    return {
        "DEFAULT": {
            "log_file": settings.log / "glance.log",
            "enabled_backends": "fast:file,slow:file",
            "transport_url": _transport_url(settings),
            "enabled_import_methods": "[glance-direct,copy-image]",
            "show_image_direct_url": True,
            "show_multiple_locations": True,
        },
        "glance_store": {"default_backend": "fast"},
        "fast": {"filesystem_store_datadir": files / "fast", "store_description": "the default store"},
        "slow": {"filesystem_store_datadir": files / "slow", "store_description": "another store"},
        "os_glance_staging_store": {"filesystem_store_datadir": files / "staging"},
        "os_glance_tasks_store": {"filesystem_store_datadir": files / "tasks"},
        "database": {"connection": _postgresql_url(settings, "glance")},
        "oslo_concurrency": {"lock_path": files / "lock"},
        "paste_deploy": {"flavor": "keystone"},
        "keystone_authtoken": _authtoken(settings, "glance"),
    }


def neutron(settings: Settings) -> Sections:
    state = settings.state / "neutron"
    # Neutron does not support PostgreSQL any more: a revision of its schema is for MySQL only, and its query of subnet
    # pools fails for members.
    database = (
        f"mysql+pymysql://{DATABASE_USER}:{PASSWORD}@127.0.0.1:{settings.port('mariadb')}/neutron?charset=utf8mb4"
    )
    return {
        "DEFAULT": {
            "log_file": settings.log / "neutron.log",
            "use_stderr": False,
            "state_path": state,
            "transport_url": _transport_url(settings),
            "core_plugin": "ml2",
            # Always loaded: tag, timestamp, revisions, flavors, auto_allocate and network_ip_availability.
            "service_plugins": "ovn-router,qos,trunk,segments,port_forwarding",
            "api_paste_config": settings.venv / "etc/neutron/api-paste.ini",
            "dns_domain": "cloud.test.",
            "notify_nova_on_port_status_changes": True,
            "notify_nova_on_port_data_changes": True,
            # Events for compute are sent in batches. This is the shortest interval, in seconds.
            "send_events_interval": 1,
        },
        "database": {"connection": database},
        "oslo_concurrency": {"lock_path": state / "lock"},
        "ml2": {
            "mechanism_drivers": "ovn",
            "type_drivers": "local,flat,vlan,geneve",
            "tenant_network_types": "geneve",
            "extension_drivers": "port_security,qos,dns_domain_keywords,port_device_profile,"
            "port_numa_affinity_policy,data_plane_status,uplink_status_propagation,tag_ports_during_bulk_creation",
            "overlay_ip_version": 4,
        },
        "ml2_type_geneve": {"vni_ranges": "1:65536", "max_header_size": 38},
        "ml2_type_vlan": {"network_vlan_ranges": "physnet1:100:199,physnet2:200:299"},
        "ml2_type_flat": {"flat_networks": "*"},
        "securitygroup": {"enable_security_group": True},
        "ovn": {
            "ovn_nb_connection": settings.ovsdb("nb"),
            "ovn_sb_connection": settings.ovsdb("sb"),
            # No metadata agent runs. With true each network would have a port for it.
            "ovn_metadata_enabled": False,
        },
        "quotas": dict.fromkeys(
            (f"quota_{name}" for name in ("network", "subnet", "port", "security_group", "security_group_rule")), -1
        ),
        # Where the events of ports go.
        "nova": {**_auth(settings, COMPUTE_USER), "endpoint_type": "internal"},
        # For the plug-in segments (routed networks).
        "placement": {**_auth(settings, "neutron"), "endpoint_type": "internal"},
        "keystone_authtoken": _authtoken(settings, "neutron"),
    }


def cinder(settings: Settings, name: str) -> Sections:
    state = settings.state / "cinder"
    etc = settings.venv / "etc/cinder"
    sections: Sections = {
        "DEFAULT": {
            "log_file": settings.log / f"{name}.log",
            "use_stderr": False,
            "state_path": state,
            "my_ip": "127.0.0.1",
            "host": "cloud",
            "auth_strategy": "keystone",
            "api_paste_config": etc / "api-paste.ini",
            "resource_query_filters_file": etc / "resource_filters.json",
            "rootwrap_config": etc / "rootwrap.conf",
            "transport_url": _transport_url(settings),
            "enabled_backends": "local,nfs" if settings.nfs else "local",
            "default_volume_type": "local",
            "glance_api_servers": settings.url("glance"),
            "image_conversion_dir": state / "conversion",
            "allow_availability_zone_fallback": True,
            "quota_volumes": -1,
            "quota_gigabytes": -1,
            "quota_snapshots": -1,
            # A start waits for the first report of the scheduler and of the volume service.
            "report_interval": 1,
            # The scheduler knows a new back end without waiting a minute.
            "backend_stats_polling_interval": 10,
        },
        "database": {"connection": _postgresql_url(settings, "cinder")},
        "oslo_concurrency": {"lock_path": state / "lock"},
        "coordination": {"backend_url": f"file://{state}/coordination"},
        "local": {
            "volume_driver": "local_file_driver.LocalFileDriver",
            "volume_backend_name": "local",
            "local_file_dir": state / "volumes",
        },
        # Where the events of volumes go.
        "nova": {
            **_auth(settings, COMPUTE_USER),
            "interface": "internal",
            "token_auth_url": settings.url("keystone"),
        },
        # To ask Glance where the bytes of an image are.
        "glance": _auth(settings, "cinder"),
        # Calls to other services have a service token.
        "service_user": {**_auth(settings, "cinder"), "send_service_user_token": True},
        "keystone_authtoken": _authtoken(settings, "cinder"),
    }
    if settings.nfs:
        sections["nfs"] = {
            "volume_driver": "cinder.volume.drivers.nfs.NfsDriver",
            "volume_backend_name": "nfs",
            "nfs_shares_config": settings.etc / "cinder/nfs_shares",
            "nfs_mount_point_base": state / "mnt",
            "nfs_snapshot_support": True,
            # Snapshots need false.
            "nas_secure_file_operations": False,
            "nas_secure_file_permissions": False,
        }
    return sections


def _auth(settings: Settings, user: str) -> Section:
    """How a service gets a token of its own."""
    return {
        "auth_type": "password",
        "auth_url": settings.url("keystone"),
        "username": user,
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
        "region_name": REGION,
    }


def _authtoken(settings: Settings, user: str) -> Section:
    """How a service validates the tokens of its callers."""
    auth = _auth(settings, user)
    return {
        **auth,
        "www_authenticate_uri": settings.url("keystone"),
        "memcached_servers": f"127.0.0.1:{settings.port('memcached')}",
        # X-Service-Token counts only if its user has the role service.
        "service_token_roles": "service",
        "service_token_roles_required": True,
    }


def _postgresql_url(settings: Settings, database: str) -> str:
    return f"postgresql+psycopg2://{DATABASE_USER}:{PASSWORD}@127.0.0.1:{settings.port('postgres')}/{database}"


def _transport_url(settings: Settings) -> str:
    return f"rabbit://guest:guest@127.0.0.1:{settings.port('rabbitmq')}/"
