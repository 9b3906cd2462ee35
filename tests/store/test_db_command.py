"""The command `kilonova db`."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from kilonova import datadir
from kilonova.cli.db import db
from kilonova.store.alembic_commands import upgrade_sqlite
from kilonova.store.migrations.head import HEAD


def kilonova_db(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(db, list(arguments))
    return result.exit_code, result.output


def test_status_and_upgrade_of_data_directory(tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "new"))
    code, output = kilonova_db("status", *where)
    assert (code, "no schema yet" in output) == (1, True)
    assert not (tmp_path / "new").exists()
    code, output = kilonova_db("upgrade", *where)
    assert (code, output) == (0, f"{tmp_path}/new/kilonova.db: created, schema {HEAD}\n")
    code, output = kilonova_db("upgrade", *where)
    assert (code, "nothing to do" in output) == (0, True)
    code, output = kilonova_db("status", *where)
    assert (code, output) == (0, f"{tmp_path}/new/kilonova.db: schema {HEAD} is current\n")


def test_status_of_database_of_another_application(postgresql_url: str) -> None:
    code, output = kilonova_db("status", "--database", postgresql_url)
    assert (code, "another application" in output) == (1, True)


def test_errors_are_one_line_without_the_password(tmp_path: Path) -> None:
    for url in ("mysql://x", f"postgresql://me:secret@/none?host={tmp_path}"):
        code, output = kilonova_db("upgrade", "--database", url)
        assert code == 1
        assert output.startswith("Error: ")
        assert output.count("\n") == 1
        assert "secret" not in output


def test_directory_in_use_is_upgraded_only_by_force(tmp_path: Path) -> None:
    upgrade_sqlite(tmp_path / "kilonova.db", "0007")
    with datadir.lock(tmp_path):
        code, output = kilonova_db("upgrade", "--data", str(tmp_path))
        assert (code, "is in use by process" in output) == (3, True)
        code, output = kilonova_db("upgrade", "--data", str(tmp_path), "--force")
        assert (code, f"upgraded from schema 0007 to {HEAD}" in output) == (0, True)
