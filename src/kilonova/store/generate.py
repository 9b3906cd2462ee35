"""Writes the schema's generated files: `python -m kilonova.store.generate`.

Without arguments: the snapshots that make a first start fast, the head, and, as long as it is the only one, revision
0001. With `--revision MESSAGE`: also a new revision for what the metadata has and the revisions so far have not; read
and complete it before committing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kilonova.store.migrate import MIGRATIONS

VERSIONS = MIGRATIONS / "versions"
FIRST = "0001"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the schema's generated files.")
    parser.add_argument("--revision", metavar="MESSAGE", help="add a revision for what changed in the metadata")
    message = parser.parse_args(arguments).revision
    tables_and_indexes("sqlite")  # a schema that cannot be loaded must not cost the files there are
    numbers = revisions()
    if message:
        write_revision(f"{int(numbers[-1]) + 1:04d}", message, since=numbers[-1])
    elif numbers in ([], [FIRST]):
        for path in VERSIONS.glob(f"{FIRST}_*.py"):
            path.unlink()
        write_revision(FIRST, "The whole schema.", since=None)
    head = revisions()[-1]
    for dialect in ("sqlite", "postgresql"):
        (MIGRATIONS / f"schema.{dialect}.sql").write_text(snapshot(dialect, head))
    (MIGRATIONS / "head.py").write_text(head_module(head))


def revisions() -> list[str]:
    return sorted(path.name[:4] for path in VERSIONS.glob("[0-9]*.py"))


def write_revision(number: str, message: str, since: str | None) -> None:
    from alembic import command

    from kilonova.store.revising import configuration, sqlite_connection, upgrade_sqlite

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scratch.db"
        if since is not None:
            upgrade_sqlite(path, since)
        with sqlite_connection(path) as connection:
            config = configuration(connection=connection, render_as_batch=since is not None)
            command.revision(config, message, autogenerate=True, rev_id=number)
    (written,) = VERSIONS.glob(f"{number}_*.py")
    lines = written.read_text().splitlines(keepends=True)
    written.write_text("".join(line for line in lines if "# ###" not in line))  # Alembic's own remarks
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--quiet", "--select", "I", "--fix", written], check=True)
    subprocess.run([*ruff, "format", "--quiet", written], check=True)


def snapshot(dialect: str, head: str) -> str:
    """What all revisions up to the head add up to, stamped with it."""
    return (
        "-- Written by `make schema` from the metadata.\n\n"
        f"{version_table()}{tables_and_indexes(dialect)}"
        f"INSERT INTO alembic_version (version_num) VALUES ('{head}');\n"
    )


def version_table() -> str:
    """Just as Alembic makes it."""
    return (
        "CREATE TABLE alembic_version (\n"
        "    version_num VARCHAR(32) NOT NULL,\n"
        "    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)\n"
        ");\n\n"
    )


def tables_and_indexes(dialect: str) -> str:
    """The metadata as a script of CREATE statements."""
    from sqlalchemy.schema import CreateIndex, CreateTable

    from kilonova.store.schema import metadata

    compiler = dialect_named(dialect)
    statements = []
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=compiler)))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        statements.extend(str(CreateIndex(index).compile(dialect=compiler)) for index in indexes)
    return "".join(f"{_tidy(statement)};\n\n" for statement in statements)


def dialect_named(name: str) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    return {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}[name]()


def head_module(head: str) -> str:
    return f'"""Written by `make schema`: the newest revision, known without asking Alembic."""\n\nHEAD = "{head}"\n'


def _tidy(statement: str) -> str:
    return "\n".join(line.replace("\t", "    ").rstrip() for line in statement.strip().splitlines())


if __name__ == "__main__":
    main()
