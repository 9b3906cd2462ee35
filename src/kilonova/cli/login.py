"""Logins at an identity service, as clouds.yaml and the environment variables OS_… describe them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kilonova.cli.options import Failure

FILE_NAMES = ("clouds.yaml", "clouds.yml", "clouds.json")
SECURE_FILE_NAMES = ("secure.yaml", "secure.yml", "secure.json")
_DIRECTORIES = (".", "~/.config/openstack", "/etc/openstack")
_PASSWORD_TYPES = ("password", "v3password")
_TOKEN_TYPES = ("token", "v3token")
_APPLICATION_CREDENTIAL = "v3applicationcredential"
# The keys below `auth` in clouds.yaml; in the environment they have the prefix OS_.
_KEYS = (
    *("auth_url", "username", "user_id", "password", "user_domain_name", "user_domain_id", "token", "system_scope"),
    *("project_name", "project_id", "project_domain_name", "project_domain_id", "domain_name", "domain_id"),
    *("default_domain_name", "default_domain_id"),
    *("application_credential_id", "application_credential_name", "application_credential_secret"),
)


class Login(NamedTuple):
    """`auth` is the body of the request for a token. `user` names the user in messages."""

    auth_url: str
    auth: dict[str, Any]
    user: str
    ca_file: str

    def __repr__(self) -> str:
        # Without the body, which has secrets.
        return f"Login(auth_url={self.auth_url!r}, user={self.user!r})"


def read_clouds(path: Path) -> dict[str, dict[str, Any]]:
    """The clouds of a file. Raises OSError, and Failure if the file is malformed."""
    import yaml

    try:
        found = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        clouds = (found or {}).get("clouds") or {}
        return {str(name): dict(cloud or {}) for name, cloud in clouds.items()}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):
        # Without the text of the error, which may quote a secret.
        raise Failure(f"{path}: expected clouds by name under 'clouds'") from None


def find_cloud(name: str) -> dict[str, Any]:
    """The cloud of the first clouds.yaml in the standard places, with its secrets of secure.yaml. Raises Failure."""
    path = _find_file("OS_CLIENT_CONFIG_FILE", FILE_NAMES)
    if path is None:
        raise Failure(f"--os-cloud: no clouds.yaml in {', '.join(_DIRECTORIES)}; name it in OS_CLIENT_CONFIG_FILE")
    try:
        clouds = read_clouds(path)
        secure = _find_file("OS_CLIENT_SECURE_FILE", SECURE_FILE_NAMES)
        secrets = read_clouds(secure) if secure is not None else {}
    except OSError as error:
        raise Failure(f"--os-cloud: {error}") from None
    if name not in clouds:
        raise Failure(f"--os-cloud: {name!r} is not one of {', '.join(clouds) or 'none'} in {path}")
    found, secret = clouds[name], secrets.get(name, {})
    return {**found, **secret, "auth": {**(found.get("auth") or {}), **(secret.get("auth") or {})}}


def environment_cloud() -> dict[str, Any] | None:
    """The cloud of the environment variables OS_…; None if they name no user."""
    auth = {key: value for key in _KEYS if (value := os.environ.get(f"OS_{key.upper()}"))}
    if not auth.keys() & {"username", "user_id", "token", "application_credential_id", "application_credential_name"}:
        return None
    return {"auth": auth, "auth_type": os.environ.get("OS_AUTH_TYPE"), "cacert": os.environ.get("OS_CACERT")}


def login_of(cloud: Mapping[str, Any], read_password: Callable[[str], str]) -> Login:
    """The login of a cloud. `read_password` is called with the user if there is no password. Raises Failure."""
    auth = {key: str(value) for key, value in (cloud.get("auth") or {}).items() if value is not None}
    kind = cloud.get("auth_type") or _guess_type(auth)
    user = auth.get("username") or auth.get("user_id") or ""
    if not auth.get("auth_url"):
        raise Failure("the login has no auth_url")
    if kind in _PASSWORD_TYPES:
        if not user:
            raise Failure("the login has no username")
        password = auth.get("password") or read_password(user)
        identity: dict[str, Any] = {"password": {"user": {**_user(auth), "password": password}}}
    elif kind in _TOKEN_TYPES:
        identity, user = {"token": {"id": _required(auth, "token")}}, "the owner of the token"
    elif kind == _APPLICATION_CREDENTIAL:
        identity, user = _application_credential(auth)
    else:
        raise Failure(f"auth_type: {kind!r} is not one of password, token and {_APPLICATION_CREDENTIAL}")
    (method,) = identity
    body: dict[str, Any] = {"identity": {"methods": [method], **identity}}
    # The scope of an application credential is that of its creator.
    if kind != _APPLICATION_CREDENTIAL and (scope := _scope(auth)):
        body["scope"] = scope
    return Login(auth["auth_url"], body, user, str(cloud.get("cacert") or ""))


def _find_file(variable: str, names: tuple[str, ...]) -> Path | None:
    if named := os.environ.get(variable):
        return Path(named).expanduser()
    places = (Path(directory).expanduser() / name for directory in _DIRECTORIES for name in names)
    return next((path for path in places if path.is_file()), None)


def _guess_type(auth: Mapping[str, str]) -> str:
    if auth.get("application_credential_id") or auth.get("application_credential_name"):
        return _APPLICATION_CREDENTIAL
    return "token" if auth.get("token") else "password"


def _required(auth: Mapping[str, str], key: str) -> str:
    if not auth.get(key):
        raise Failure(f"the login has no {key}")
    return auth[key]


def _application_credential(auth: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    secret = _required(auth, "application_credential_secret")
    if found := auth.get("application_credential_id"):
        return {"application_credential": {"id": found, "secret": secret}}, f"the application credential {found}"
    name = _required(auth, "application_credential_name")
    credential = {"name": name, "secret": secret, "user": _user(auth)}
    return {"application_credential": credential}, f"the application credential {name}"


def _user(auth: Mapping[str, str]) -> dict[str, Any]:
    if user_id := auth.get("user_id"):
        return {"id": user_id}
    return {"name": _required(auth, "username"), "domain": _domain(auth, "user_domain")}


def _domain(auth: Mapping[str, str], prefix: str) -> dict[str, str]:
    for place in (prefix, "default_domain"):
        for key in ("id", "name"):
            if value := auth.get(f"{place}_{key}"):
                return {key: value}
    raise Failure(f"the login has no {prefix}_name")


def _scope(auth: Mapping[str, str]) -> dict[str, Any] | None:
    if auth.get("system_scope") == "all":
        return {"system": {"all": True}}
    if project_id := auth.get("project_id"):
        return {"project": {"id": project_id}}
    if name := auth.get("project_name"):
        return {"project": {"name": name, "domain": _domain(auth, "project_domain")}}
    if auth.get("domain_id") or auth.get("domain_name"):
        return {"domain": _domain(auth, "domain")}
    return None
