"""Writes the schema's generated files: `python -m kilonova.store.generate`.

Without arguments: the schema snapshots, which make a first start fast, and the head; also revision 0001 while it is the
only one. With `--revision MESSAGE`: also a new revision with the differences between the metadata and the existing
revisions. Review and complete it before committing.
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
FIRST_REVISION = "0001"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the schema's generated files.")
    parser.add_argument("--revision", metavar="MESSAGE", help="add a revision with the changes of the metadata")
    message = parser.parse_args(arguments).revision
    tables_and_indexes("sqlite")  # fails before any file is changed if the schema cannot be loaded
    numbers = list_revisions()
    if message:
        write_revision(f"{int(numbers[-1]) + 1:04d}", message, since=numbers[-1])
    elif numbers in ([], [FIRST_REVISION]):
        for path in VERSIONS.glob(f"{FIRST_REVISION}_*.py"):
            path.unlink()
        write_revision(FIRST_REVISION, "The whole schema.", since=None)
    head = list_revisions()[-1]
    for dialect in ("sqlite", "postgresql"):
        (MIGRATIONS / f"schema.{dialect}.sql").write_text(snapshot(dialect, head))
    (MIGRATIONS / "head.py").write_text(head_module(head))


def list_revisions() -> list[str]:
    return sorted(path.name[:4] for path in VERSIONS.glob("[0-9]*.py"))


def write_revision(number: str, message: str, since: str | None) -> None:
    from alembic import command

    from kilonova.store.alembic_commands import configuration, sqlite_connection, upgrade_sqlite

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scratch.db"
        if since is not None:
            upgrade_sqlite(path, since)
        with sqlite_connection(path) as connection:
            config = configuration(connection=connection, render_as_batch=since is not None)
            command.revision(config, message, autogenerate=True, rev_id=number)
    (written,) = VERSIONS.glob(f"{number}_*.py")
    lines = written.read_text().splitlines(keepends=True)
    written.write_text("".join(line for line in lines if "# ###" not in line))  # Alembic's comments
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--quiet", "--select", "I", "--fix", written], check=True)
    subprocess.run([*ruff, "format", "--quiet", written], check=True)


def snapshot(dialect: str, head: str) -> str:
    """A script that creates the schema at the head, including the version stamp."""
    return (
        "-- Written by `make schema` from the metadata.\n\n"
        f"{version_table()}{tables_and_indexes(dialect)}"
        f"INSERT INTO alembic_version (version_num) VALUES ('{head}');\n"
    )


def version_table() -> str:
    """The same table that Alembic creates."""
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
    return "".join(f"{_strip_whitespace(statement)};\n\n" for statement in statements)


def dialect_named(name: str) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    return {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}[name]()


def head_module(head: str) -> str:
    return f'"""Written by `make schema`: the newest revision, known without importing Alembic."""\n\nHEAD = "{head}"\n'


def _strip_whitespace(statement: str) -> str:
    return "\n".join(line.replace("\t", "    ").rstrip() for line in statement.strip().splitlines())


if __name__ == "__main__":
    main()
