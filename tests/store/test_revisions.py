"""Revisions keep the rows of older releases."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from kilonova.store.alembic_commands import upgrade_sqlite


def test_revisions_keep_aggregates(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    upgrade_sqlite(path, "0001")
    old = sqlite3.connect(path)
    old.execute("INSERT INTO aggregates VALUES (7, 'uuid', 'name', 1.0, NULL)")
    old.execute("INSERT INTO aggregate_hosts VALUES (7, 'host1')")
    old.execute("INSERT INTO aggregate_metadata VALUES (7, 'ssd', 'true')")
    old.commit()
    old.close()
    upgrade_sqlite(path)
    new = sqlite3.connect(path)
    new.execute("PRAGMA foreign_keys = ON")
    assert new.execute("SELECT * FROM aggregates").fetchall() == [(7, "uuid", "name", 1.0, None)]
    assert new.execute("SELECT * FROM aggregate_metadata").fetchall() == [(7, "ssd", "true")]
    # Foreign keys to the aggregates still work.
    new.execute("DELETE FROM aggregates")
    assert new.execute("SELECT * FROM aggregate_hosts").fetchall() == []
    new.execute("INSERT INTO aggregates (uuid, name, created_at) VALUES ('other', 'other', 1.0)")
    assert new.execute("SELECT id FROM aggregates").fetchall() == [(8,)]
    new.close()


def test_revisions_keep_users(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    upgrade_sqlite(path, "0007")
    old = sqlite3.connect(path)
    old.execute("INSERT INTO domains VALUES ('default', 'Default', '', 1, '{}')")
    old.execute("INSERT INTO users VALUES ('u', 'default', 'demo', 1, NULL, '$scrypt$', '{}')")
    old.commit()
    old.close()
    upgrade_sqlite(path)
    new = sqlite3.connect(path)
    found = new.execute("SELECT name, password_hash, password_changed_at, token_epoch FROM users").fetchall()
    assert found == [("demo", "$scrypt$", None, 0)]
    new.close()


def test_revisions_keep_images_and_servers_without_hash_and_files(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    upgrade_sqlite(path, "0007")
    old = sqlite3.connect(path)
    _insert(old, "images", id="image", name="old")
    _insert(old, "servers", id="server", image_id="image")
    old.commit()
    old.close()
    upgrade_sqlite(path)
    new = sqlite3.connect(path)
    assert new.execute("SELECT id, name FROM images").fetchall() == [("image", "old")]
    assert new.execute("SELECT image_id, image_hash, shelved_image_hash, personality FROM servers").fetchall() == [
        ("image", None, None, None)
    ]
    assert new.execute("SELECT * FROM deleted_images").fetchall() == []
    new.close()


def test_revision_keeps_roles_with_their_assignments(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    upgrade_sqlite(path, "0010")
    old = sqlite3.connect(path)
    old.execute("INSERT INTO domains VALUES ('default', 'Default', '', 1, '{}')")
    _insert(old, "users", id="user", domain_id="default")
    for role in ("admin", "member"):
        _insert(old, "roles", id=role, name=role)
    _insert(old, "role_assignments", user_id="user", target_kind="domain", target_id="default", role_id="admin")
    old.execute("INSERT INTO implied_roles VALUES ('admin', 'member')")
    old.commit()
    old.close()
    upgrade_sqlite(path)
    new = sqlite3.connect(path)
    new.execute("PRAGMA foreign_keys = ON")
    assert new.execute("SELECT name, domain_id FROM roles ORDER BY name").fetchall() == [("admin", ""), ("member", "")]
    assert new.execute("SELECT role_id FROM role_assignments").fetchall() == [("admin",)]
    _insert(new, "roles", id="other", name="admin", domain_id="default")
    # Foreign keys to the roles still work.
    new.execute("DELETE FROM roles WHERE id = 'admin'")
    assert new.execute("SELECT * FROM role_assignments").fetchall() == []
    assert new.execute("SELECT * FROM implied_roles").fetchall() == []
    new.close()


def _insert(database: sqlite3.Connection, table: str, **values: str) -> None:
    """Insert a row; other columns that may not be null are 0."""
    columns = database.execute(f"SELECT name FROM pragma_table_info('{table}') WHERE \"notnull\"").fetchall()
    row = {**{name: "0" for (name,) in columns}, **values}
    database.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", [*row.values()])
