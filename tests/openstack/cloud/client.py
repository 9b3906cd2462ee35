"""A small HTTP client for the APIs of the cloud."""

from __future__ import annotations

import threading
from typing import Any

import httpx

from tests.openstack.cloud.settings import PASSWORD, Settings

# A newer Cinder has all that is tested. The header does not concern other services.
VOLUME_VERSION = "volume 3.71"


class Client:
    """Requests of one user in one project. A token is renewed when it does not count any more."""

    def __init__(self, settings: Settings, user: str = "admin", project: str = "admin") -> None:
        self.settings = settings
        self.user = user
        self.project = project
        self._token: str | None = None
        self._lock = threading.Lock()
        self._http = httpx.Client(trust_env=False, timeout=120)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    @property
    def token(self) -> str:
        with self._lock:
            if self._token is None:
                self._token = self._authenticate()
            return self._token

    def request(self, service: str, method: str, path: str, **arguments: Any) -> httpx.Response:
        """The answer of a service (identity, image, network, block-storage) whatever its status is."""
        headers = {"OpenStack-API-Version": VOLUME_VERSION, **arguments.pop("headers", {})}
        url = self.settings.endpoints[service] + path
        answer = self._http.request(method, url, headers={"X-Auth-Token": self.token, **headers}, **arguments)
        if answer.status_code == 401:
            self._token = None
            answer = self._http.request(method, url, headers={"X-Auth-Token": self.token, **headers}, **arguments)
        return answer

    def call(self, service: str, method: str, path: str, body: object = None, **arguments: Any) -> Any:
        """The decoded answer, which must be a success."""
        if body is not None:
            arguments["json"] = body
        answer = self.request(service, method, path, **arguments)
        if answer.is_error:
            raise httpx.HTTPStatusError(
                f"{method} {answer.url}: {answer.status_code} {answer.text[:500]}",
                request=answer.request,
                response=answer,
            )
        return answer.json() if answer.content and "json" in answer.headers.get("content-type", "") else None

    def get(self, service: str, path: str) -> Any:
        return self.call(service, "GET", path)

    def post(self, service: str, path: str, body: object) -> Any:
        return self.call(service, "POST", path, body)

    def put(self, service: str, path: str, body: object = None) -> Any:
        return self.call(service, "PUT", path, body)

    def patch(self, service: str, path: str, body: object) -> Any:
        return self.call(service, "PATCH", path, body)

    def delete(self, service: str, path: str) -> None:
        self.call(service, "DELETE", path)

    def _authenticate(self) -> str:
        domain = {"name": "Default"}
        user = {"name": self.user, "password": PASSWORD, "domain": domain}
        body = {
            "auth": {
                "identity": {"methods": ["password"], "password": {"user": user}},
                "scope": {"project": {"name": self.project, "domain": domain}},
            }
        }
        answer = self._http.post(f"{self.settings.endpoints['identity']}/auth/tokens", json=body)
        answer.raise_for_status()
        return answer.headers["X-Subject-Token"]
