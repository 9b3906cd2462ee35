"""The table of volume states, and the status that follows from attachments."""

from __future__ import annotations

import pytest

from kilonova.http.errors import BadRequest
from kilonova.ids import new_id
from kilonova.volume.volumes import model, states
from tests.support import run
from tests.support.cloud import DEMO
from tests.volume.support import VolumeCloud, put_volume, volume_cloud


async def attach(c: VolumeCloud, volume_id: str, status: str) -> None:
    async with c.db.transaction() as tx:
        await tx.execute(
            "INSERT INTO volume_attachments (id, volume_id, project_id, status, mode, created_at, updated_at)"
            " VALUES ($1, $2, $3, $4, 'rw', 1, 1)",
            new_id(),
            volume_id,
            DEMO,
            status,
        )


async def derived(c: VolumeCloud, volume_id: str) -> str:
    async with c.db.transaction() as tx:
        status = await model.derive_status(tx, volume_id)
    assert status == await c.db.fetch_value("SELECT status FROM volumes WHERE id = $1", volume_id)
    return status


IN_USE = model.Volume(
    id="v",
    project_id="p",
    user_id="u",
    size=1,
    status="in-use",
    type_id="t",
    zone="nova",
    bootable=False,
    multiattach=False,
    created_at=1.0,
    updated_at=1.0,
)


def test_transitions_with_a_status_meanwhile_have_an_end() -> None:
    for name, transition in states.TRANSITIONS.items():
        if transition.meanwhile is not None:
            assert transition.meanwhile in states.BUSY, name
            assert transition.then is not None, name
            assert transition.failed is not None, name
            assert transition.meanwhile not in transition.allowed, name
    assert states.SETTABLE.issuperset(states.ATTACHMENT_STATES)


def test_wrong_status_error_names_allowed_statuses() -> None:
    with pytest.raises(BadRequest) as refused:
        states.check(IN_USE, "os-reserve")
    assert str(refused.value) == (
        "Invalid volume: Volume v status must be available to reserve, but the current status is: in-use."
    )


def test_diagram_has_every_action() -> None:
    drawn = states.draw()
    assert "    available --> deleting: delete\n    deleting --> [*]: done" in drawn
    assert "    downloading --> reserved: done" in drawn
    assert "    uploading --> in-use: failed" in drawn
    assert len(drawn.splitlines()) == len(set(drawn.splitlines()))


@pytest.mark.parametrize(
    ("attachments", "status"),
    [
        ([], "available"),
        (["reserved"], "reserved"),
        (["reserved", "attaching"], "attaching"),
        (["attaching", "attached", "reserved"], "in-use"),
        (["error_attaching"], "available"),
    ],
)
def test_status_follows_from_attachments(attachments: list[str], status: str, sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            for before in states.ATTACHMENT_STATES:
                volume_id = await put_volume(c.db, status=before)
                for each in attachments:
                    await attach(c, volume_id, each)
                assert await derived(c, volume_id) == status
            for before in (*states.BUSY, states.ERROR, states.AWAITING_TRANSFER):
                volume_id = await put_volume(c.db, status=before)
                for each in attachments:
                    await attach(c, volume_id, each)
                assert await derived(c, volume_id) == before

    run(scenario())


def test_end_of_transition_sets_status_from_attachments(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db, status="in-use")
            await attach(c, volume_id, "attached")
            for ok, after in ((True, "in-use"), (False, "error_extending")):
                async with c.db.transaction() as tx:
                    volume = await model.get(tx, volume_id, lock=True)
                    assert volume is not None
                    volume = await model.begin_transition(tx, volume, "os-extend in-use")
                assert (volume.status, volume.previous_status) == ("extending", "in-use")
                async with c.db.transaction() as tx:
                    await model.end_transition(tx, volume_id, "os-extend in-use", ok=ok)
                found = await model.get(c.db, volume_id)
                assert found is not None
                assert (found.status, found.previous_status) == (after, None)

    run(scenario())
