"""Written by `make schema`: the newest revision, known without importing Alembic."""

HEAD = "0020"
