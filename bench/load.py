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

    async def boots(self, count: int, at_once: int) -> dict[str, Any]:
        """So many servers, so many on their way at a time; the seconds from request to ACTIVE of each."""
        flavor, image, network = await self.parts()
        numbers = iter(range(count))
        taken: list[float] = []
        looks = 0

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
            figures = await load.boots(job["count"], job["at_once"])
        case "show":
            figures = await load.repeat(f"/compute/v2.1/servers/{await load.first_server()}", job["count"])
        case "list":
            figures = await load.repeat("/compute/v2.1/servers/detail", job["count"])
    sys.stdout.buffer.write(orjson.dumps(figures))


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
