"""`kilonova backup` and `kilonova restore`: what they contain, and what they refuse."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from kilonova import datadir
from kilonova.backup import files, manifest
from kilonova.cli import main
from kilonova.store import incarnation
from kilonova.store.alembic_commands import upgrade_sqlite
from kilonova.store.migrations.head import HEAD
from tests.support import run
from tests.support.cloud_process import CloudProcess, NotStarted
from tests.support.data_template import prepare_data_directory
from tests.support.databases import opened


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a stopped cloud."""
    directory = tmp_path / "data"
    prepare_data_directory(directory, None)
    return directory


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def backup(data: Path, name: str = "backup") -> Path:
    directory = data.parent / name
    code, output = command("backup", directory, "--data", data)
    assert code == 0, output
    return directory


def content(directory: Path) -> dict[Path, bytes]:
    return {path: (directory / path).read_bytes() for path in files.list_files(directory)}


def replace_in_manifest(directory: Path, old: str, new: str) -> None:
    path = directory / manifest.MANIFEST
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_backup_has_every_file_that_is_not_excluded(data: Path) -> None:
    (data / "authority").mkdir()
    for name in ("authority/key.pem", "a-file-of-a-later-feature", "fernet.keys"):
        (data / name).write_text(name)
    for name in ("kilonova.log", "lock", "endpoints.json", ".temporary", "instances/disk", "images/uploads/part"):
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text(name)
    found = manifest.read(backup(data))
    paths = {file.path for file in found.files}
    assert {"database.db", "data/authority/key.pem", "data/a-file-of-a-later-feature", "data/fernet.keys"} <= paths
    assert {"data/secrets.json"} <= paths
    assert not any(
        name in path for name in ("log", "lock", "endpoints", "temporary", "disk", "uploads") for path in paths
    )
    assert (found.format, found.schema, found.database, found.missing) == (1, HEAD, "sqlite", [])


def test_backup_and_restore_keep_files_private(data: Path) -> None:
    directory = backup(data)
    restored = data.parent / "restored"
    assert command("restore", directory, "--data", restored)[0] == 0
    assert content(restored).keys() == content(data).keys()
    assert (restored / "secrets.json").read_bytes() == (data / "secrets.json").read_bytes()
    for root in (directory / "data", restored):
        modes = {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}
        assert modes == {0o600, 0o700}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_holes_stay_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.seek(64 << 20)
        file.write(b"data")
        file.truncate(128 << 20)
    files.copy_file(source, target)
    assert files.digest(target) == files.digest(source)
    assert target.stat().st_blocks * 512 < 8 << 20


def test_files_that_are_deleted_during_the_backup_are_kept(data: Path) -> None:
    path = next(path for path in files.list_files(data) if path.parts[0] == "images")
    with files.links_directory(data) as links:
        kept = files.link_files(data, [path, Path("images/deleted before")], links)
        (data / path).unlink()
        assert list(kept) == [path]
        assert kept[path].stat().st_size > 0
        with pytest.raises(BlockingIOError), files.links_directory(data):
            pass
    assert not links.exists()


def test_missing_image_is_reported(data: Path) -> None:
    path = next(path for path in files.list_files(data) if path.parts[0] == "images")
    (data / path).unlink()
    code, output = command("backup", data.parent / "backup", "--data", data)
    assert (code, f"{path} is missing in the cloud" in output) == (0, True)
    assert manifest.read(data.parent / "backup").missing == [str(path)]


def test_backup_overwrites_nothing(data: Path) -> None:
    target = data.parent / "backup"
    target.mkdir()
    (target / "file").write_text("mine")
    code, output = command("backup", target, "--data", data)
    assert (code, "is not empty" in output) == (1, True)
    code, output = command("backup", data / "backup", "--data", data)
    assert (code, "in the data directory" in output) == (1, True)
    code, output = command("backup", data.parent / "other", "--data", data.parent / "nothing")
    assert (code, "has no cloud" in output) == (1, True)
    assert sorted(path.name for path in data.parent.iterdir()) == ["backup", "data"]


def test_damaged_backups_are_refused(data: Path) -> None:
    for change, message in (
        (lambda directory: (directory / "database.db").write_bytes(b"x"), "database.db: size or checksum differ"),
        (lambda directory: (directory / "data/secrets.json").unlink(), "secrets.json: No such file"),
        (lambda directory: (directory / "manifest.json").unlink(), "is no backup"),
        (lambda directory: (directory / "manifest.json").write_text("{}"), "manifest.json: "),
        (lambda directory: replace_in_manifest(directory, '"format": 1', '"format": 2'), "the format is 2"),
        (lambda directory: replace_in_manifest(directory, "data/secrets.json", "../secrets.json"), "leads out of"),
        (lambda directory: replace_in_manifest(directory, f'"{HEAD}"', '"7777"'), "schema 7777, which this release"),
        (lambda directory: replace_in_manifest(directory, '"sqlite"', '"postgresql"'), "no database in the list"),
    ):
        directory = backup(data)
        change(directory)
        code, output = command("restore", directory, "--data", data.parent / "restored")
        assert (code, message in output) == (1, True), output
        assert not (data.parent / "restored").exists()
        shutil.rmtree(directory)


def test_restore_to_another_kind_of_database_is_refused(data: Path) -> None:
    url = f"postgresql://nobody@/none?host={data.parent}"
    code, output = command("restore", backup(data), "--data", data.parent / "restored", "--database", url)
    assert (code, "does not move a cloud to another kind of database" in output) == (1, True)


def test_restore_replaces_data_only_by_force(data: Path) -> None:
    directory = backup(data)
    (data / "secrets.json").write_text("changed")
    (data / "kilonova.log").write_text("log")
    code, output = command("restore", directory, "--data", data)
    assert (code, "--force" in output) == (1, True)
    assert (data / "secrets.json").read_text() == "changed"
    assert command("restore", directory, "--data", data, "--force")[0] == 0
    assert (data / "secrets.json").read_bytes() == (directory / "data/secrets.json").read_bytes()
    (replaced,) = data.glob("replaced-*")
    assert (replaced / "secrets.json").read_text() == "changed"
    assert (data / "kilonova.log").read_text() == "log"
    assert not any("replaced" in file.path for file in manifest.read(backup(data, "second")).files)


def test_restore_waits_until_the_directory_is_unused(data: Path) -> None:
    directory = backup(data)
    with datadir.lock(data):
        code, output = command("restore", directory, "--data", data, "--force")
    assert (code, f"in use by process {os.getpid()}" in output) == (3, True)


def test_restored_database_begins_a_new_incarnation(data: Path) -> None:
    async def mark(directory: Path) -> incarnation.Mark:
        async with opened(f"sqlite://{directory}/kilonova.db") as db:
            return await incarnation.set_up(db)

    before = run(mark(data))
    directory = backup(data)
    marks = [before]
    for name in ("first", "second"):
        assert command("restore", directory, "--data", data.parent / name)[0] == 0
        marks.append(run(mark(data.parent / name)))
    assert marks == sorted(set(marks))


def test_backup_of_an_older_schema_is_upgraded(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    upgrade_sqlite(data / "kilonova.db", "0007")
    directory = backup(data)
    assert manifest.read(directory).schema == "0007"
    assert command("restore", directory, "--data", tmp_path / "restored")[0] == 0
    restored = apsw.Connection(str(tmp_path / "restored/kilonova.db"))
    assert restored.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]
    restored.close()


def test_interrupted_restore_cannot_be_started(data: Path) -> None:
    directory = backup(data)
    (data / datadir.RESTORING).mkdir()
    with pytest.raises(NotStarted, match=r"a restore into .* is not finished"), CloudProcess(data):
        pass
    assert command("restore", directory, "--data", data, "--force")[0] == 0
    assert not (data / datadir.RESTORING).exists()


def test_older_copy_of_a_database_is_noticed_at_the_start(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data", "--hosts", "1") as cloud:
        cloud.stop()
        shutil.copy(cloud.data / "kilonova.db", tmp_path / "copy")
        cloud.start()
        client = cloud.client()
        client.wait(client.boot(), status="ACTIVE")
        cloud.stop()
        shutil.copy(tmp_path / "copy", cloud.data / "kilonova.db")
        with pytest.raises(NotStarted, match="the database is older than host sim-001") as refused:
            cloud.start()
        assert refused.value.code == 1
        assert command("db", "adopt", "--data", cloud.data)[0] == 0
        cloud.start()
        client = cloud.client()
        client.wait(client.boot(), status="ACTIVE")


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_postgresql_database_in_use_is_not_replaced(
    tmp_path: Path, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    prepare_data_directory(data, empty_url)
    where = ("--data", data, "--database", empty_url)
    assert command("backup", tmp_path / "backup", *where)[0] == 0

    async def use() -> None:
        async with opened(empty_url):
            import asyncio

            code, output = await asyncio.to_thread(command, "restore", tmp_path / "backup", "--force", *where)
            assert (code, f"in use by kilonova 0.1.0 (schema {HEAD}) on {os.getpid()}@" in output) == (3, True), output

    run(use())
    code, output = command("restore", tmp_path / "backup", *where)
    assert (code, "has data already" in output) == (1, True)
    code, output = command("restore", tmp_path / "backup", "--force", *where)
    assert code == 0, output
    monkeypatch.setenv("PATH", str(tmp_path))
    code, output = command("backup", tmp_path / "other", *where)
    assert (code, "pg_dump is missing" in output) == (1, True)
