"""Who may call the routes of the Block Storage API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.ids import new_id
from kilonova.policy.volume import RULES
from kilonova.store.insert import insert_row
from kilonova.volume import build
from kilonova.volume.messages.model import Message
from tests.authorization.support import Comparison, Part, caller_of, check_readers_write_nothing, check_rules
from tests.fuzz.resources import ApiCaller, wait_until_available
from tests.support import run
from tests.support.cloud import DEMO, OTHER
from tests.support.full_cloud import FullCloud, full_cloud
from tests.volume.support import put_volume

VERSION = "3.71"


def bodies(names: Mapping[str, Any]) -> dict[str, Any]:
    enabled = {"host": names["service_host"], "binary": "cinder-volume"}
    return {
        "POST /volumes/{volume_id}/action#os-initialize_connection": {
            "os-initialize_connection": {"connector": {"host": "x"}}
        },
        **{
            f"POST /volumes/{{volume_id}}/action#{action}": {action: None}
            for action in ("os-detach", "os-force_detach")
        },
        "POST /volumes/{volume_id}/action#os-retype": {"os-retype": {"new_type": names["type_id"]}},
        "PUT /default-types/{project_id}": {"default_type": {"volume_type": names["type_id"]}},
        "PUT /os-services/enable": enabled,
        "PUT /os-services/disable": enabled,
        "PUT /os-services/disable-log-reason": {**enabled, "disabled_reason": "x"},
        "PUT /volumes/{volume_id}/metadata/{key}": {"meta": {"key": "y"}},
        "PUT /snapshots/{snapshot_id}/metadata/{key}": {"meta": {"key": "y"}},
        "PUT /types/{type_id}/extra_specs/{key}": {"key": "y"},
        "POST /types/{type_id}/extra_specs": {"extra_specs": {"key": "y"}},
        "POST /types": {"volume_type": {"name": "new"}},
        "POST /volumes": {"volume": {"size": 1, "snapshot_id": names["snapshot_id"]}},
        "POST /attachments": {
            "attachment": {"volume_uuid": names["volume_id"], "instance_uuid": names["instance_uuid"]}
        },
    }


MISSING = {
    "GET /default-types/{project_id}",
    "DELETE /default-types/{project_id}",
    # The volume has no such metadata.
    "POST /volumes/{volume_id}/action#os-unset_image_metadata",
    # The type is public.
    "GET /types/{type_id}/os-volume-type-access",
    "GET /os-hosts/{host}",
    "GET /capabilities/{host}",
}
NOT_CALLED = {
    "volume:force_delete": "os-force_delete asks volume_extension:volume_admin_actions:force_delete",
    "volume_extension:list_manageable": "volumes cannot be managed",
}
OPEN = {f"POST /{path}/{{transfer_id}}/accept" for path in ("os-volume-transfer", "volume-transfers")}


async def create_objects(c: FullCloud, project_id: str) -> dict[str, Any]:
    call = ApiCaller(c, build(), f"admin@{project_id}")

    async def make(path: str, noun: str, **values: Any) -> str:
        made = await call.make(path, noun, VERSION, name="v", metadata={"key": "x"}, **values)
        await wait_until_available(call, f"{path}/{made['id']}", noun)
        return str(made["id"])

    given, connected, server = (
        await make("/v3/volumes", "volume", size=1),
        await make("/v3/volumes", "volume", size=1),
        await c.boot_active(as_=f"admin@{project_id}"),
    )
    volume = await make("/v3/volumes", "volume", size=1)
    attachment = await call.make(
        "/v3/attachments", "attachment", VERSION, volume_uuid=connected, instance_uuid=server["id"]
    )
    transfer = await call.make("/v3/volume-transfers", "transfer", VERSION, volume_id=given)
    return {
        "volume_id": volume,
        "volume_uuid": volume,
        "instance_uuid": server["id"],
        "snapshot_id": await make("/v3/snapshots", "snapshot", volume_id=volume),
        "transfer_id": transfer["id"],
        "auth_key": transfer["auth_key"],
        "attachment_id": attachment["id"],
        "message_id": await create_message(c, project_id, volume),
        "project": project_id,
        "project_id": project_id,
        "key": "key",
        "size": 1,
        "os-quota-class-sets/name": "default",
    }


async def create_special_volumes(c: FullCloud) -> dict[str, str]:
    volume_type = str(await c.db.fetch_value("SELECT id FROM volume_types WHERE name = '__DEFAULT__'"))
    used = await put_volume(c.db, type_id=volume_type, status="in-use")
    reserved = await put_volume(c.db, type_id=volume_type, status="reserved")
    shared = await put_volume(c.db, type_id=volume_type, status="in-use", multiattach=True, bootable=True)
    server = (await c.boot_active())["id"]
    attachment = {"volume_uuid": shared, "instance_uuid": server}
    await ApiCaller(c, build()).make("/v3/attachments", "attachment", VERSION, **attachment)
    return {"used": used, "reserved": reserved, "shared": shared, "server": server}


def parts(special: dict[str, str], image_id: str) -> list[Part]:
    action = "POST /volumes/{volume_id}/action#"
    upload = {"image_name": "i", "visibility": "public"}
    again = {"volume_uuid": special["shared"], "instance_uuid": special["server"]}
    return [
        Part("volume:create_from_image", "POST /volumes", {"volume": {"size": 1, "imageRef": image_id}}),
        Part("volume:multiattach", "POST /volumes", {"volume": {"size": 1, "volume_type": special["type"]}}),
        Part("volume:multiattach_bootable_volume", "POST /attachments", {"attachment": again}),
        Part(
            "volume:extend_attached_volume",
            f"{action}os-extend",
            {"os-extend": {"new_size": 2}},
            names={"volume_id": special["used"]},
        ),
        Part(
            "volume:reimage_reserved",
            f"{action}os-reimage",
            {"os-reimage": {"image_id": image_id, "reimage_reserved": True}},
            names={"volume_id": special["reserved"]},
        ),
        Part(
            "volume_extension:volume_actions:upload_public",
            f"{action}os-volume_upload_image",
            {"os-volume_upload_image": upload},
        ),
        Part("volume_extension:quotas:show", "GET /limits", query=f"?project_id={OTHER}", of_other=True),
    ]


async def create_message(c: FullCloud, project_id: str, volume_id: str) -> str:
    message = Message(
        id=new_id(),
        project_id=project_id,
        event_id="VOLUME_VOLUME_101_001",
        level="ERROR",
        resource_type="VOLUME",
        resource_id=volume_id,
        text="create volume",
        request_id="",
        created_at=1.0,
        expires_at=4e9,
    )
    async with c.db.transaction() as tx:
        await insert_row(tx, Message.table, message.encode())
    return message.id


def test_answers_match_the_page(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            admin = ApiCaller(c, build())
            kind = await admin.make("/v3/types", "volume_type", name="t", extra_specs={"multiattach": "<is> True"})
            services = (await admin("GET", "/v3/os-services?binary=cinder-volume", None, None)).json()["services"]
            shared = {"type_id": kind["id"], "service_host": services[0]["host"], "extra_specs/key": "multiattach"}
            own, other = await create_objects(c, DEMO) | shared, await create_objects(c, OTHER) | shared
            compared = Comparison(
                build(),
                c.services,
                caller_of(c, build()),
                own,
                other,
                bodies,
                parts=parts({**await create_special_volumes(c), "type": kind["id"]}, c.image_id),
                missing=MISSING,
                open_=OPEN,
            )
            await compared.run()
            assert not compared.wrong, "\n".join(compared.wrong)
            check_rules(compared, RULES, NOT_CALLED)

    run(scenario())


def test_readers_write_nothing() -> None:
    shows = "POST /volumes/{volume_id}/action#os-show_image_metadata"
    check_readers_write_nothing(build(), {shows: "shows metadata"})
