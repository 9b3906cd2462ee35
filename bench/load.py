"""The load, in a process of its own so that its CPU is not the server's: a job on stdin, figures on stdout."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import orjson

from bench.wire import Wire, log_in

FIRST_LOOK = 0.02
LOOK_EVERY = 0.02
GIVE_UP = 120.0
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
    def there(volume: Any) -> bool:
        if volume["status"].startswith("error"):
            raise RuntimeError(f"a volume failed: {volume}")
        return bool(volume["status"] == status)

    return there


class Load:
    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token

    def wire(self) -> Wire:
        return Wire(self.url, self.token)

    async def together(self, items: Iterable[Item], at_once: int, do: Work[Item]) -> dict[str, Any]:
        """So many items, so many in hand at a time; the seconds that each took, and how often it was looked at."""
        left = iter(items)
        taken: list[float] = []
        looks = 0

        async def lane() -> None:
            nonlocal looks
            wire = self.wire()
            for item in left:
                began = time.perf_counter()
                looked = await do(wire, item)
                looks += looked
                taken.append(time.perf_counter() - began)
            wire.close()

        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(at_once)))
        return {"seconds": time.perf_counter() - began, "taken": sorted(taken), "looks": looks}

    async def boots(
        self, count: int, at_once: int, host: str | None = None, name: str = "bench", from_volume: bool = False
    ) -> dict[str, Any]:
        """Servers, from request to ACTIVE."""
        flavor, image, network = await self.parts()
        asked = {"flavorRef": flavor, "networks": [{"uuid": network}]}
        asked |= {"block_device_mapping_v2": [_new_volume(image)]} if from_volume else {"imageRef": image}
        if host:
            asked["host"] = host

        async def boot(wire: Wire, number: int) -> int:
            body = {"server": {"name": f"{name}-{number}", **asked}}
            made = await wire.json("POST", "/compute/v2.1/servers", body, expect=202)
            return await self.look(wire, f"/compute/v2.1/servers/{made['server']['id']}", _active)

        return await self.together(range(count), at_once, boot)

    async def moves(self, action: str, body: Any, where: str, at_once: int) -> dict[str, Any]:
        """The same asked of all servers that the query finds, from request to rest."""

        async def move(wire: Wire, server: Any) -> int:
            path = f"/compute/v2.1/servers/{server['id']}"
            status, _, answer = await wire.request("POST", f"{path}/action", {action: body})
            if status not in (200, 202):
                raise RuntimeError(f"{action}: {status} {answer[:300].decode(errors='replace')}")
            return await self.look(wire, path, _at_rest)

        return await self.together(await self.servers(where), at_once, move)

    async def volumes(self, count: int, at_once: int) -> dict[str, Any]:
        """Blank volumes, from request to available."""

        async def make(wire: Wire, number: int) -> int:
            made = await wire.json("POST", VOLUMES, {"volume": {"name": f"bench-{number}", "size": 1}}, expect=202)
            return await self.look(wire, f"{VOLUMES}/{made['volume']['id']}", _in_status("available"))

        return await self.together(range(count), at_once, make)

    async def attach(self, where: str, at_once: int) -> dict[str, Any]:
        """A volume to each server that the query finds, from request to in-use."""

        async def add(wire: Wire, pair: tuple[Any, Any]) -> int:
            server, volume = pair
            body = {"volumeAttachment": {"volumeId": volume["id"]}}
            await wire.json("POST", f"/compute/v2.1/servers/{server['id']}/os-volume_attachments", body)
            return await self.look(wire, f"{VOLUMES}/{volume['id']}", _in_status("in-use"))

        servers = await self.servers(where)
        volumes = (await self.once(f"{VOLUMES}?status=available"))["volumes"]
        return await self.together(zip(servers, volumes, strict=True), at_once, add)

    async def detach(self, at_once: int) -> dict[str, Any]:
        """Every volume that is not a root disk, from request to available."""

        async def remove(wire: Wire, volume: Any) -> int:
            server_id = volume["attachments"][0]["server_id"]
            path = f"/compute/v2.1/servers/{server_id}/os-volume_attachments/{volume['id']}"
            await wire.json("DELETE", path, expect=202)
            return await self.look(wire, f"{VOLUMES}/{volume['id']}", _in_status("available"))

        volumes = (await self.once(f"{VOLUMES}/detail?status=in-use&bootable=false"))["volumes"]
        return await self.together(volumes, at_once, remove)

    async def look(self, wire: Wire, path: str, there: Callable[[Any], bool]) -> int:
        """How often one has to look until it is there."""
        until = time.perf_counter() + GIVE_UP
        await asyncio.sleep(FIRST_LOOK)
        looks = 0
        while time.perf_counter() < until:
            looks += 1
            (found,) = (await wire.json("GET", path)).values()
            if there(found):
                return looks
            await asyncio.sleep(LOOK_EVERY)
        raise RuntimeError(f"{path} is still on its way after {GIVE_UP:g} s")

    async def once(self, path: str) -> Any:
        wire = self.wire()
        found = await wire.json("GET", path)
        wire.close()
        return found

    async def servers(self, where: str) -> list[Any]:
        found: list[Any] = (await self.once(f"/compute/v2.1/servers?{where}"))["servers"]
        return found

    async def parts(self) -> tuple[str, str, str]:
        flavors = (await self.once("/compute/v2.1/flavors"))["flavors"]
        images = (await self.once("/image/v2/images"))["images"]
        networks = (await self.once("/network/v2.0/networks"))["networks"]
        return (
            next(f["id"] for f in flavors if f["name"] == "m1.tiny"),
            next(i["id"] for i in images if i["name"] == "cirros-sim"),
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
        return str((await self.servers("limit=1"))[0]["id"])


async def main() -> None:
    """The job names what to do; its other keys are how."""
    job = orjson.loads(sys.stdin.buffer.read())
    load = Load(job["url"], await log_in(job["auth_url"], job["auth"]))
    match job["what"]:
        case "show":
            figures = await load.repeat(f"/compute/v2.1/servers/{await load.first_server()}", **job["how"])
        case "list":
            figures = await load.repeat("/compute/v2.1/servers/detail", **job["how"])
        case what:
            figures = await getattr(load, what)(**job["how"])
    sys.stdout.buffer.write(orjson.dumps(figures))


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
