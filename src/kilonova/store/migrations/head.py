"""Written by `make schema`: the newest revision, known without asking Alembic."""

HEAD = "0005"
