"""Generates load in a process of its own, so that its CPU is not counted: job on stdin, results on stdout."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import orjson

from bench.wire import Wire, log_in

FIRST_POLL_SECONDS = 0.02
POLL_INTERVAL_SECONDS = 0.02
TIMEOUT_SECONDS = 120.0
VOLUMES = "/volume/v3/volumes"
Item = TypeVar("Item")
Work = Callable[[Wire, Item], Awaitable[int]]


def _new_volume(image: str) -> dict[str, Any]:
    return {
        "source_type": "image",
        "destination_type": "volume",
        "uuid": image,
        "volume_size": 1,
        "boot_index": 0,
        "delete_on_termination": True,
    }


def _active(server: Any) -> bool:
    if server["status"] == "ERROR":
        raise RuntimeError(f"a server failed: {server.get('fault')}")
    return bool(server["status"] == "ACTIVE")


def _at_rest(server: Any) -> bool:
    if server["OS-EXT-STS:task_state"] is not None:
        return False
    if "fault" in server:
        raise RuntimeError(f"a move failed: {server['fault']}")
    return True


def _in_status(status: str) -> Callable[[Any], bool]:
    def is_done(volume: Any) -> bool:
        if volume["status"].startswith("error"):
            raise RuntimeError(f"a volume failed: {volume}")
        return bool(volume["status"] == status)

    return is_done


class Load:
    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token

    def wire(self) -> Wire:
        return Wire(self.url, self.token)

    async def run_concurrently(self, items: Iterable[Item], at_once: int, do: Work[Item]) -> dict[str, Any]:
        """Process items with `at_once` workers; return the seconds of each and the number of polls."""
        left = iter(items)
        taken: list[float] = []
        polls = 0

        async def worker() -> None:
            nonlocal polls
            wire = self.wire()
            for item in left:
                began = time.perf_counter()
                polled = await do(wire, item)
                polls += polled
                taken.append(time.perf_counter() - began)
            wire.close()

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        return {"seconds": time.perf_counter() - began, "taken": sorted(taken), "polls": polls}

    async def boots(
        self, count: int, at_once: int, host: str | None = None, name: str = "bench", from_volume: bool = False
    ) -> dict[str, Any]:
        """Boot servers, from request to ACTIVE."""
        flavor, image, network = await self.find_boot_resources()
        server = {"flavorRef": flavor, "networks": [{"uuid": network}]}
        server |= {"block_device_mapping_v2": [_new_volume(image)]} if from_volume else {"imageRef": image}
        if host:
            server["host"] = host

        async def boot(wire: Wire, number: int) -> int:
            body = {"server": {"name": f"{name}-{number}", **server}}
            made = await wire.json("POST", "/compute/v2.1/servers", body, expect=202)
            return await self.poll(wire, f"/compute/v2.1/servers/{made['server']['id']}", _active)

        return await self.run_concurrently(range(count), at_once, boot)

    async def moves(self, action: str, body: Any, where: str, at_once: int) -> dict[str, Any]:
        """Run an action on all servers that the query finds, until its task is finished."""

        async def move(wire: Wire, server: Any) -> int:
            path = f"/compute/v2.1/servers/{server['id']}"
            status, _, answer = await wire.request("POST", f"{path}/action", {action: body})
            if status not in (200, 202):
                raise RuntimeError(f"{action}: {status} {answer[:300].decode(errors='replace')}")
            return await self.poll(wire, path, _at_rest)

        return await self.run_concurrently(await self.servers(where), at_once, move)

    async def volumes(self, count: int, at_once: int) -> dict[str, Any]:
        """Create blank volumes, from request to available."""

        async def make(wire: Wire, number: int) -> int:
            made = await wire.json("POST", VOLUMES, {"volume": {"name": f"bench-{number}", "size": 1}}, expect=202)
            return await self.poll(wire, f"{VOLUMES}/{made['volume']['id']}", _in_status("available"))

        return await self.run_concurrently(range(count), at_once, make)

    async def attach(self, where: str, at_once: int) -> dict[str, Any]:
        """Attach a volume to each server that the query finds, from request to in-use."""

        async def add(wire: Wire, pair: tuple[Any, Any]) -> int:
            server, volume = pair
            body = {"volumeAttachment": {"volumeId": volume["id"]}}
            await wire.json("POST", f"/compute/v2.1/servers/{server['id']}/os-volume_attachments", body)
            return await self.poll(wire, f"{VOLUMES}/{volume['id']}", _in_status("in-use"))

        servers = await self.servers(where)
        volumes = (await self.get(f"{VOLUMES}?status=available"))["volumes"]
        return await self.run_concurrently(zip(servers, volumes, strict=True), at_once, add)

    async def detach(self, at_once: int) -> dict[str, Any]:
        """Detach every volume that is not a root disk, from request to available."""

        async def remove(wire: Wire, volume: Any) -> int:
            server_id = volume["attachments"][0]["server_id"]
            path = f"/compute/v2.1/servers/{server_id}/os-volume_attachments/{volume['id']}"
            await wire.json("DELETE", path, expect=202)
            return await self.poll(wire, f"{VOLUMES}/{volume['id']}", _in_status("available"))

        volumes = (await self.get(f"{VOLUMES}/detail?status=in-use&bootable=false"))["volumes"]
        return await self.run_concurrently(volumes, at_once, remove)

    async def poll(self, wire: Wire, path: str, is_done: Callable[[Any], bool]) -> int:
        """Poll until the object is done; return the number of polls."""
        until = time.perf_counter() + TIMEOUT_SECONDS
        await asyncio.sleep(FIRST_POLL_SECONDS)
        polls = 0
        while time.perf_counter() < until:
            polls += 1
            (found,) = (await wire.json("GET", path)).values()
            if is_done(found):
                return polls
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
        raise RuntimeError(f"{path} is not done after {TIMEOUT_SECONDS:g} s")

    async def get(self, path: str) -> Any:
        wire = self.wire()
        found = await wire.json("GET", path)
        wire.close()
        return found

    async def servers(self, where: str) -> list[Any]:
        found: list[Any] = (await self.get(f"/compute/v2.1/servers?{where}"))["servers"]
        return found

    async def find_boot_resources(self) -> tuple[str, str, str]:
        flavors = (await self.get("/compute/v2.1/flavors"))["flavors"]
        images = (await self.get("/image/v2/images"))["images"]
        networks = (await self.get("/network/v2.0/networks"))["networks"]
        return (
            next(f["id"] for f in flavors if f["name"] == "m1.tiny"),
            next(i["id"] for i in images if i["name"] == "cirros-sim"),
            next(n["id"] for n in networks if n["name"] == "private"),
        )

    async def repeat(self, path: str, count: int) -> dict[str, Any]:
        """Repeat a GET on one connection."""
        wire = self.wire()
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            await wire.json("GET", path)
            taken.append(time.perf_counter() - began)
        wire.close()
        return {"taken": sorted(taken)}

    async def send(self, requests: list[str], raw: bool, at_once: int) -> dict[str, Any]:
        """Send requests and read their responses. A request is a path to GET, or raw bytes in Latin-1."""

        async def get(wire: Wire, path: str) -> int:
            status, _, answer = await wire.request("GET", path)
            if status != 200:
                raise RuntimeError(f"GET {path}: {status} {answer[:300].decode(errors='replace')}")
            return 0

        async def send_raw(wire: Wire, data: str) -> int:
            reader, writer = await asyncio.open_connection(wire.host, wire.port, limit=2**24)
            writer.write(data.encode("latin-1"))
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return 0

        return await self.run_concurrently(requests, at_once, send_raw if raw else get)

    async def first_server(self) -> str:
        return str((await self.servers("limit=1"))[0]["id"])


async def main() -> None:
    document = orjson.loads(sys.stdin.buffer.read())
    load = Load(document["url"], await log_in(document["auth_url"], document["auth"]))
    options = document["options"]
    match document["job"]:
        case "show":
            results = await load.repeat(f"/compute/v2.1/servers/{await load.first_server()}", **options)
        case "list":
            results = await load.repeat("/compute/v2.1/servers/detail", **options)
        case method:
            results = await getattr(load, method)(**options)
    sys.stdout.buffer.write(orjson.dumps(results))


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
