"""noVNC's pages, and the page for a missing noVNC."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.compute.consoles.support import served
from tests.support import run


def test_novnc_files_are_served(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "rfb.js").write_text("export default 1;")
    (tmp_path / "vnc_auto.html").write_text("<html>noVNC</html>")
    (tmp_path.parent / "secret.html").write_text("secret")

    async def scenario() -> None:
        async with (
            served(sqlite_url, console__novnc_path=str(tmp_path)) as (_, base),
            httpx.AsyncClient(timeout=60) as client,
        ):
            page = await client.get(f"{base}/console/vnc_auto.html?path=x")
            assert (page.status_code, page.text) == (200, "<html>noVNC</html>")
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert page.headers["referrer-policy"] == "no-referrer"
            script = await client.get(f"{base}/console/core/rfb.js")
            assert script.headers["content-type"] == "text/javascript; charset=utf-8"
            for missing in ("", "/", "/core", "/other.js", "/..%2Fsecret.html", "/%2e%2e/secret.html", "/core/%00"):
                assert (await client.get(f"{base}/console{missing}")).status_code == 404, missing
            assert (await client.post(f"{base}/console/vnc_auto.html")).status_code == 405
            # The websocket's path is not a page.
            assert (await client.get(f"{base}/console/websocket")).status_code == 404

    run(scenario())


def test_missing_novnc_is_explained(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(sqlite_url, console__novnc_path=str(tmp_path / "none")) as (_, base):
            async with httpx.AsyncClient(timeout=60) as client:
                page = await client.get(f"{base}/console/vnc_auto.html")
            assert page.status_code == 503
            assert "apt install novnc" in page.text

    run(scenario())
