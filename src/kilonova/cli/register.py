"""`kilonova register`: creates in a real Keystone what Kilonova needs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from kilonova.cli import options, tables
from kilonova.cli.login import Login, environment_cloud, find_cloud, login_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kilonova.config import Config
    from kilonova.identity.registration import Change, Permissions, Wanted


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option(
    "--os-cloud",
    metavar="NAME",
    envvar="OS_CLOUD",
    help="Log in as this cloud of clouds.yaml; without it, as the variables OS_… say.",
)
@click.option("--url", metavar="URL", help="Where clients reach Kilonova.  [default: public_url]")
@click.option("--internal-url", metavar="URL", help="Where services reach it.  [default: as --url]")
@click.option("--admin-url", metavar="URL", help="The admin endpoint's URL.  [default: as --internal-url]")
@click.option(
    "--domain",
    "domains",
    metavar="NAME",
    multiple=True,
    help="Let the user create volumes and images in projects of this domain only; repeat it for several.",
)
@click.option("--replace", is_flag=True, help="Have endpoints of another compute service point to Kilonova.")
@click.option("--update-password", is_flag=True, help="Set the password of an existing user.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@options.file
def register(
    file: Path | None,
    dry_run: bool,
    os_cloud: str | None,
    url: str | None,
    internal_url: str | None,
    admin_url: str | None,
    domains: tuple[str, ...],
    replace: bool,
    update_password: bool,
    as_json: bool,
) -> None:
    """Register Kilonova in the Keystone at identity.auth_url.

    Creates the service user with its roles and the endpoints of Kilonova, where they are missing; a second run changes
    nothing. Log in as an administrator of Keystone. The service user's password is identity.password
    (KILONOVA_IDENTITY__PASSWORD in the environment).
    """
    from kilonova.encryption import problems_of_registration
    from kilonova.http.client import Unreachable
    from kilonova.identity.administrator import RegistrationError
    from kilonova.identity.registration import Permissions

    config = options.load(file)
    if not config.identity.auth_url:
        raise options.Failure("identity.auth_url: set the URL of Keystone in the configuration")
    public = _check_url("--url", url or config.public_url)
    internal = _check_url("--internal-url", internal_url or public)
    urls = {"public": public, "internal": internal, "admin": _check_url("--admin-url", admin_url or internal)}
    login = _administrator(config, os_cloud)
    passwords_to = {"identity.auth_url": config.identity.auth_url, "auth_url of the administrator": login.auth_url}
    if not config.insecure and (problems := problems_of_registration(passwords_to)):
        raise options.Failure("\n".join(problems))
    password = config.identity.password or _prompt("identity.password", f"Password for {config.identity.username}")
    wanted = _wanted(config, password, urls, domains)
    permissions = Permissions(dry_run=dry_run, replace=replace, update_password=update_password)
    changes: list[Change] = []
    try:
        missing = asyncio.run(_register(config, login, wanted, permissions, changes))
    except (RegistrationError, Unreachable) as error:
        if any(change.action != "unchanged" for change in changes) and not dry_run:
            _print_table(changes, dry_run)
        raise options.Failure(str(error)) from None
    if as_json:
        _print_json(changes)
    else:
        _print_table(changes, dry_run)
    for text in missing:
        click.echo(f"Warning: {text}", err=True)


async def _register(
    config: Config, login: Login, wanted: Wanted, permissions: Permissions, changes: list[Change]
) -> list[str]:
    """Register, then check that the service user can log in. Returns the services that Kilonova would not find."""
    from kilonova.certificates import UnusableCertificate, client_context
    from kilonova.http.client import Remote
    from kilonova.identity.administrator import Administrator
    from kilonova.identity.client import base_url
    from kilonova.identity.registration import Registration

    try:
        tls = client_context(login.ca_file or config.identity.ca_file, "the authority of Keystone's certificate")
    except UnusableCertificate as error:
        raise options.Failure(str(error)) from None
    remote = Remote(base_url(login.auth_url), tls=tls)
    try:
        administrator = Administrator(remote, login.auth, login.user)
        await administrator.log_in()
        await Registration(administrator, wanted, permissions, changes).run()
    finally:
        await remote.close()
    return [] if permissions.dry_run else await _check(config, wanted.password)


async def _check(config: Config, password: str) -> list[str]:
    """Log in as Kilonova will do. A service of the catalogue may be added later, so a missing one is no error."""
    import msgspec

    from kilonova.certificates import UnusableCertificate
    from kilonova.companions import SERVICE_TYPES, make_identity_client
    from kilonova.identity.administrator import RegistrationError
    from kilonova.identity.client import IdentityError

    identity = msgspec.structs.replace(config.identity, password=password)
    try:
        client = make_identity_client(msgspec.structs.replace(config, identity=identity), None, password)
    except UnusableCertificate as error:
        raise RegistrationError(str(error)) from None
    missing = []
    try:
        await client.token()
        for service in ("image", "network", "volume"):
            if config.is_built_in(service) or getattr(config, service).url:
                continue
            try:
                await client.endpoint(*SERVICE_TYPES[service])
            except IdentityError as error:
                missing.append(f"{error}; register the service, or set {service}.url")
    except IdentityError as error:
        raise RegistrationError(f"Kilonova cannot log in at identity.auth_url {identity.auth_url}: {error}") from None
    finally:
        await client.close()
    return missing


def _wanted(config: Config, password: str, urls: dict[str, str], domains: tuple[str, ...]) -> Wanted:
    from kilonova.identity.own_services import local_services
    from kilonova.identity.registration import Wanted
    from kilonova.unified_limits import default_limits

    identity = config.identity
    limits = default_limits(config) if config.quota.driver == "unified" else {}
    return Wanted(
        username=identity.username,
        password=password,
        user_domain=identity.user_domain_name,
        project=identity.project_name,
        project_domain=identity.project_domain_name,
        region=identity.region,
        services=local_services(config),
        urls=urls,
        domains=domains,
        limits=limits,
    )


def _administrator(config: Config, os_cloud: str | None) -> Login:
    cloud = find_cloud(os_cloud) if os_cloud else environment_cloud()
    if cloud is None:
        raise options.Failure(
            "no administrator: set OS_USERNAME, OS_PASSWORD, OS_PROJECT_NAME and so on, or --os-cloud"
        )
    auth = {"auth_url": config.identity.auth_url, **(cloud["auth"] or {})}
    return login_of({**cloud, "auth": auth}, lambda user: _prompt("OS_PASSWORD", f"Password of {user}"))


def _prompt(source: str, text: str) -> str:
    """Ask on the terminal. Without one, raise Failure with the setting that is missing."""
    if not sys.stdin.isatty():
        raise options.Failure(f"{source}: not set")
    return str(click.prompt(text, hide_input=True, err=True))


def _check_url(option: str, url: str) -> str:
    if not url:
        raise options.Failure(f"{option}: say where clients reach Kilonova, or set public_url")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise options.Failure(f"{option}: {url!r} is not an http:// or https:// URL")
    return url.rstrip("/")


def _print_table(changes: Sequence[Change], dry_run: bool) -> None:
    console = tables.make_console()
    table = tables.make_table("RESULT", "KIND", "NAME", "DETAILS")
    words = {"created": "would be created", "updated": "would be updated"} if dry_run else {}
    for change in changes:
        table.add_row(words.get(change.action, change.action), change.kind, change.name, change.detail)
    console.print(table)
    if all(change.action == "unchanged" for change in changes):
        console.print("Nothing to change: Kilonova is registered.")
    if undo := [change.undo for change in reversed(changes) if change.undo]:
        console.print("To revert the changes of the catalogue:")
        for command in undo:
            console.print(f"  {command}", soft_wrap=True)


def _print_json(changes: Sequence[Change]) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(list(changes)), indent=2))
