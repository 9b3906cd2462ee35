"""An agent process: how it verifies the image service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.agent_process import image_tls
from kilonova.certificates import ServerCertificate
from kilonova.config import Agent
from kilonova.http.client import Remote, Unreachable
from kilonova.http.server import Server, listen, socket_url
from kilonova.startup_checks import CannotStart
from tests.support import run
from tests.support.certificates import Authority


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def served(files: Path) -> AsyncIterator[str]:
    bound = listen("127.0.0.1", 0)
    certificate = ServerCertificate(files / "server-cert.pem", files / "server-key.pem")
    server = Server(answer, bound, certificate.context)
    await server.start()
    try:
        yield socket_url(bound, "https")
    finally:
        await server.stop()
        bound.close()


def test_image_service_is_verified(tmp_path: Path) -> None:
    files = Authority().issue(tmp_path / "own", "127.0.0.1")
    own, other = (str(path / "ca-cert.pem") for path in (files, Authority().issue(tmp_path / "other", "127.0.0.1")))

    async def is_trusted(url: str, **settings: str) -> bool:
        remote = Remote(url, tls=image_tls(Agent(image_url=url, **settings)))
        try:
            return (await remote.request("GET", "/v2/images")).status == 204
        except Unreachable:
            return False
        finally:
            await remote.close()

    async def scenario() -> None:
        async with served(files) as url:
            assert await is_trusted(url, image_ca_file=own)
            assert await is_trusted(url, ca_file=own)
            assert not await is_trusted(url)
            assert not await is_trusted(url, image_ca_file=other)
            assert not await is_trusted(url, ca_file=own, image_ca_file=other)

    run(scenario())


@pytest.mark.parametrize("setting", ["image_ca_file", "ca_file"])
def test_missing_authority_is_named(setting: str) -> None:
    with pytest.raises(CannotStart, match=rf"^agent\.{setting}: /nowhere\.pem cannot be used"):
        image_tls(Agent(image_url="https://cloud", **{setting: "/nowhere.pem"}))
