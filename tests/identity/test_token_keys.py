"""The keys that encrypt tokens."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import strategies as st

from kilonova.config import Config
from kilonova.identity.token_keys import ConfiguredKeys, KeyFile, KeyRing, key_ring, new_key

IDENTS = st.one_of(
    st.uuids().map(lambda value: value.hex), st.text(max_size=64), st.text("abcdefABCDEF019", min_size=32, max_size=32)
)


def test_key_file_is_private_and_created_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first = KeyRing(KeyFile(path))
    text = first.encrypt(b"hello")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KeyRing(KeyFile(path)).decrypt(text) == b"hello"
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys"]


def test_rotation_keeps_some_older_keys(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    running = KeyRing(KeyFile(tmp_path / "keys"))
    texts = [running.encrypt(b"0")]
    for turn in range(1, 4):
        file.rotate()
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        texts.append(KeyRing(file).encrypt(str(turn).encode()))
    assert [running.decrypt(text) for text in texts] == [None, b"1", b"2", b"3"]
    assert KeyRing(KeyFile(file.path)).decrypt(running.encrypt(b"new")) == b"new"


def test_configured_keys_take_precedence(tmp_path: Path) -> None:
    keys = [new_key(), new_key()]
    old = KeyRing(ConfiguredKeys(keys[1:]))
    config = Config(data=str(tmp_path))
    config.identity.token_keys = keys
    assert key_ring(config).decrypt(old.encrypt(b"x")) == b"x"
    assert old.decrypt(key_ring(config).encrypt(b"x")) is None
    assert list(tmp_path.iterdir()) == []
    key_ring(Config(data=str(tmp_path))).encrypt(b"x")
    assert (tmp_path / "fernet.keys").exists()


@pytest.mark.parametrize("bad", ["", "short", "é" * 44, "A" * 40, "A" * 48])
def test_invalid_configured_key_is_not_shown_in_error(tmp_path: Path, bad: str) -> None:
    config = Config(data=str(tmp_path))
    config.identity.token_keys = [new_key(), bad]
    with pytest.raises(ValueError, match="key 2 is not 32 bytes") as error:
        key_ring(config)
    assert not bad or bad not in str(error.value)


# The cache


# What ends a token
