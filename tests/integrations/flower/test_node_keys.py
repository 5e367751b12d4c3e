"""The operator's folder of keys, and signatures made with them."""

import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.flower.node_keys import (
    is_signed_by,
    key_file,
    read_keys,
    seconds_since,
)
from examples.flower_on_one_machine.keys import write_node_key


@pytest.fixture
def private(tmp_path):
    """The private keys of agents 0 and 3; the public ones are in a folder."""
    folder = tmp_path / "keys"
    folder.mkdir()
    found = {}
    for agent in (0, 3):
        path = tmp_path / f"{agent}.key"
        write_node_key(path).rename(key_file(folder, agent))
        found[agent] = load_ssh_private_key(path.read_bytes(), None)
    return found


def encoded(key):
    return public_key_to_bytes(key.public_key())


def test_keys_are_read_as_flower_sends_them(private, tmp_path):
    keys = read_keys(tmp_path / "keys", 4)
    assert keys == {encoded(private[0]): 0, encoded(private[3]): 3}


def test_keys_of_ssh_keygen(tmp_path):
    """As the guide makes them, with a comment."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "me"]
    try:
        subprocess.run([*command, "-f", tmp_path / "node.key"], check=True)
    except FileNotFoundError:
        public = write_node_key(tmp_path / "node.key")
        public.write_bytes(public.read_bytes() + b" me\n")
    (tmp_path / "node.key.pub").rename(tmp_path / "agent-0.pub")
    private = load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert read_keys(tmp_path) == {encoded(private): 0}


def test_a_signature(private, tmp_path):
    key = encoded(private[0])
    signature = sign_message(private[0], b"now")
    assert is_signed_by(key, "now", signature)
    assert not is_signed_by(key, "then", signature)
    assert not is_signed_by(encoded(private[3]), "now", signature)


def test_the_age_of_a_time():
    then = datetime.now(UTC) - timedelta(seconds=90)
    assert seconds_since(then.isoformat()) == pytest.approx(90.0, abs=5.0)
    for text in ("yesterday", "2026-01-01T00:00:00"):
        with pytest.raises(ValueError, match=r"isoformat|no time zone"):
            seconds_since(text)


def test_a_folder_that_is_no_list_of_keys(private, tmp_path):
    folder = tmp_path / "keys"
    with pytest.raises(InvalidArgumentError, match=r"up to 2, got 'agent-3\.pub'"):
        read_keys(folder, 3)
    for name in ("agent-03.pub", "agent.pub", "agent--1.pub"):
        (folder / name).write_bytes(key_file(folder, 0).read_bytes())
        with pytest.raises(InvalidArgumentError, match=f"got '{name}'"):
            read_keys(folder)
        (folder / name).unlink()
    key_file(folder, 1).write_bytes(key_file(folder, 0).read_bytes())
    with pytest.raises(InvalidArgumentError, match="also the key of agent 0"):
        read_keys(folder)
    ed25519 = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPz" + b"A" * 41
    for text in (b"", b"noise", ed25519):
        key_file(folder, 1).write_bytes(text)
        with pytest.raises(InvalidArgumentError, match="as ssh-keygen -t ecdsa writes"):
            read_keys(folder)
    with pytest.raises(InvalidArgumentError, match=r"has no agent-0\.pub"):
        read_keys(tmp_path / "missing")
