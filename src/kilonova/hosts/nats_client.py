"""A client of a NATS server that never sends anything, such as its password, without TLS."""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client
from nats.errors import Error


class TlsClient(Client):
    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Refuse a server that offers no TLS. The library would continue without, as anybody on the wire may wish."""
        scheme = self._current_server.uri.scheme if self._current_server is not None else ""
        if initial_connection and scheme != "wss" and (scheme == "ws" or not info.get("tls_required")):
            raise Error("nats: the server does not require TLS, but this process does: its settings ask for TLS")
        await super()._process_info(info, initial_connection)
