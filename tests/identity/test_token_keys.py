"""The keys that encrypt tokens."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import strategies as st

from kilonova import clock, datadir
from kilonova.config import Config
from kilonova.identity.token_keys import ConfiguredKeys, Key, KeyFile, KeyRing, credential_key_ring, key_ring, new_key

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


def test_rotation_keeps_keys_while_their_tokens_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    file = KeyFile(tmp_path / "keys")
    running = KeyRing(KeyFile(tmp_path / "keys"))
    texts = [running.encrypt(b"0")]
    for turn in range(1, 4):
        now[0] += 40
        keys, dropped = file.rotate(lifetime_seconds=100)
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        assert [key.created_at for key in keys] == [now[0] - 40 * age for age in range(turn + 1)]
        assert dropped == []
        texts.append(KeyRing(file).encrypt(str(turn).encode()))
    assert [running.decrypt(text) for text in texts] == [b"0", b"1", b"2", b"3"]
    now[0] += 60  # the second key was created 140 seconds ago, the third one 100 seconds ago
    keys, dropped = file.rotate(lifetime_seconds=100)
    assert (len(keys), len(dropped)) == (3, 2)
    assert [running.decrypt(text) for text in texts] == [None, None, b"2", b"3"]
    keys, dropped = file.rotate(lifetime_seconds=0)
    assert (len(keys), len(dropped)) == (1, 3)
    assert [running.decrypt(text) for text in texts] == [None] * 4
    assert KeyRing(KeyFile(file.path)).decrypt(running.encrypt(b"new")) == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys"]


def test_parallel_rotations_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with ThreadPoolExecutor(8) as threads:
        newest = [keys[0] for keys, _ in threads.map(lambda _: KeyFile(path).rotate(lifetime_seconds=1000), range(24))]
    assert sorted(KeyFile(path).load()) == sorted(newest)


def test_file_of_an_older_release_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    texts = [new_key(), new_key()]
    path.write_text("".join(f"{text}\n" for text in texts))
    os.utime(path, (1000, 1000))
    assert KeyFile(path).load() == [Key(text, 1000.0) for text in texts]
    keys, dropped = KeyFile(path).rotate(lifetime_seconds=100)
    assert ([key.text for key in keys[1:]], [key.text for key in dropped]) == (texts[:1], texts[1:])


def test_killed_rotation_leaves_valid_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    text = KeyRing(KeyFile(path)).encrypt(b"early")
    rotate = f"KeyFile(Path({str(path)!r})).rotate(1000)"
    code = (
        "from pathlib import Path; from kilonova.identity.token_keys import KeyFile\n"
        f"while True:\n    {rotate}; print(flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.kill()
    assert len(KeyFile(path).load()) > 20
    path.with_name("keys.new").write_text("the unfinished file of a killed process")
    keys, _ = KeyFile(path).rotate(1000)
    assert KeyRing(KeyFile(path)).decrypt(text) == b"early"
    assert (path.stat().st_mode & 0o777, sorted(entry.name for entry in tmp_path.iterdir())) == (0o600, ["keys"])
    assert "the unfinished" not in path.read_text()
    assert str(keys[0]) == f"Key({keys[0].id})"


BAD_FILES = ["", "short\n", f"{new_key()} yesterday\n", f"{new_key()} 2026-01-01T00:00:00Z\nx\n"]


@pytest.mark.parametrize("bad", BAD_FILES, ids=["empty", "no key", "no time", "second line"])
def test_malformed_file_is_refused_and_former_keys_stay_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    path = tmp_path / "fernet.keys"
    ring = KeyRing(KeyFile(path))
    text = ring.encrypt(b"early")
    datadir.replace_file(path, bad.encode())
    for _ in range(3):
        assert ring.decrypt(text) == b"early"
    (record,) = caplog.records
    assert "former keys stay in use" in record.getMessage()
    assert bad[:20].strip() not in record.getMessage() or not bad
    with pytest.raises(ValueError, match=r"fernet\.keys") as error:
        key_ring(Config(data=str(tmp_path)))
    assert not bad or bad[:20].strip() not in str(error.value)
    path.unlink()
    assert ring.decrypt(text) == b"early"


def test_malformed_file_of_credential_keys_is_refused_at_start(tmp_path: Path) -> None:
    config = Config(data=str(tmp_path))
    assert credential_key_ring(config) is not None
    assert list(tmp_path.iterdir()) == []  # the first credential creates it
    (tmp_path / "credential.keys").write_text("short\n")
    with pytest.raises(ValueError, match=r"credential\.keys: line 1 has no key"):
        credential_key_ring(config)


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
