"""The load, in a process of its own so that its CPU is not the server's: a job on stdin, figures on stdout."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import orjson

from bench.wire import Wire, log_in

FIRST_LOOK = 0.02
LOOK_EVERY = 0.02
GIVE_UP = 120.0


class Load:
    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token

    def wire(self) -> Wire:
        return Wire(self.url, self.token)

    async def boots(self, count: int, at_once: int, host: str | None = None) -> dict[str, Any]:
        """So many servers, so many on their way at a time; the seconds from request to ACTIVE of each."""
        flavor, image, network = await self.parts()
        numbers = iter(range(count))
        taken: list[float] = []
        looks = 0
        wish = {"host": host} if host else {}

        async def lane() -> None:
            nonlocal looks
            wire = self.wire()
            for number in numbers:
                body = {
                    "server": {
                        "name": f"bench-{number}",
                        "flavorRef": flavor,
                        "imageRef": image,
                        "networks": [{"uuid": network}],
                        **wish,
                    }
                }
                began = time.perf_counter()
                made = await wire.json("POST", "/compute/v2.1/servers", body, expect=202)
                looked = await self.active(wire, made["server"]["id"], began)
                looks += looked
                taken.append(time.perf_counter() - began)
            wire.close()

        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(at_once)))
        return {"seconds": time.perf_counter() - began, "taken": sorted(taken), "looks": looks}

    async def moves(self, action: str, body: Any, where: str, at_once: int) -> dict[str, Any]:
        """The same asked of all servers that the query finds; the seconds from request to rest of each."""
        listing = self.wire()
        found = (await listing.json("GET", f"/compute/v2.1/servers?{where}"))["servers"]
        listing.close()
        servers = iter(found)
        taken: list[float] = []
        looks = 0

        async def lane() -> None:
            nonlocal looks
            wire = self.wire()
            for server in servers:
                began = time.perf_counter()
                path = f"/compute/v2.1/servers/{server['id']}"
                status, _, answer = await wire.request("POST", f"{path}/action", {action: body})
                if status not in (200, 202):
                    raise RuntimeError(f"{action}: {status} {answer[:300].decode(errors='replace')}")
                looked = await self.at_rest(wire, path, began)
                looks += looked
                taken.append(time.perf_counter() - began)
            wire.close()

        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(at_once)))
        return {"seconds": time.perf_counter() - began, "taken": sorted(taken), "looks": looks}

    async def at_rest(self, wire: Wire, path: str, began: float) -> int:
        await asyncio.sleep(FIRST_LOOK)
        looks = 0
        while time.perf_counter() - began < GIVE_UP:
            looks += 1
            server = (await wire.json("GET", path))["server"]
            if server["OS-EXT-STS:task_state"] is None:
                if "fault" in server:
                    raise RuntimeError(f"a move failed: {server['fault']}")
                return looks
            await asyncio.sleep(LOOK_EVERY)
        raise RuntimeError(f"{path} is still on its way after {GIVE_UP:g} s")

    async def active(self, wire: Wire, identity: str, began: float) -> int:
        await asyncio.sleep(FIRST_LOOK)
        looks = 0
        while time.perf_counter() - began < GIVE_UP:
            looks += 1
            server = (await wire.json("GET", f"/compute/v2.1/servers/{identity}"))["server"]
            if server["status"] == "ACTIVE":
                return looks
            if server["status"] == "ERROR":
                raise RuntimeError(f"a server failed: {server.get('fault')}")
            await asyncio.sleep(LOOK_EVERY)
        raise RuntimeError(f"server {identity} is not ACTIVE after {GIVE_UP:g} s")

    async def parts(self) -> tuple[str, str, str]:
        wire = self.wire()
        flavors = (await wire.json("GET", "/compute/v2.1/flavors"))["flavors"]
        images = (await wire.json("GET", "/image/v2/images"))["images"]
        networks = (await wire.json("GET", "/network/v2.0/networks"))["networks"]
        wire.close()
        return (
            next(f["id"] for f in flavors if f["name"] == "m1.tiny"),
            images[0]["id"],
            next(n["id"] for n in networks if n["name"] == "private"),
        )

    async def repeat(self, path: str, count: int) -> dict[str, Any]:
        """The same GET again and again on one connection."""
        wire = self.wire()
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            await wire.json("GET", path)
            taken.append(time.perf_counter() - began)
        wire.close()
        return {"taken": sorted(taken)}

    async def first_server(self) -> str:
        wire = self.wire()
        servers = (await wire.json("GET", "/compute/v2.1/servers?limit=1"))["servers"]
        wire.close()
        return str(servers[0]["id"])


async def main() -> None:
    job = orjson.loads(sys.stdin.buffer.read())
    load = Load(job["url"], await log_in(job["auth_url"], job["auth"]))
    match job["what"]:
        case "boots":
            figures = await load.boots(job["count"], job["at_once"], job.get("host"))
        case "moves":
            figures = await load.moves(job["action"], job["body"], job["where"], job["at_once"])
        case "show":
            figures = await load.repeat(f"/compute/v2.1/servers/{await load.first_server()}", job["count"])
        case "list":
            figures = await load.repeat("/compute/v2.1/servers/detail", job["count"])
    sys.stdout.buffer.write(orjson.dumps(figures))


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
