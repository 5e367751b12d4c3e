"""Signatures with key files."""

import stat
import sys
from dataclasses import replace

import pytest

from botorch_dp.exceptions import (
    CertificateError,
    InvalidArgumentError,
    MissingExtraError,
)
from botorch_dp.privacy import Certificate, Declaration, GaussianEvent, Ledger
from botorch_dp.privacy.signatures import Signature, create_key


@pytest.fixture
def ledger():
    ledger = Ledger()
    ledger.charge(GaussianEvent(2.0))
    return ledger


@pytest.fixture
def certificate(ledger):
    return Certificate.from_ledger(ledger)


class TestKeys:
    def test_only_the_owner_reads_the_private_one(self, tmp_path):
        public = create_key(tmp_path / "key")
        assert public == tmp_path / "key.pub"
        assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
        assert b"PRIVATE" not in public.read_bytes()

    def test_no_key_is_overwritten(self, tmp_path):
        create_key(tmp_path / "key")
        before = (tmp_path / "key").read_bytes()
        with pytest.raises(InvalidArgumentError, match="path must be"):
            create_key(tmp_path / "key")
        (tmp_path / "key.pub").unlink()
        with pytest.raises(InvalidArgumentError, match="path must be"):
            create_key(tmp_path / "key")
        assert (tmp_path / "key").read_bytes() == before

    @pytest.mark.parametrize("content", [b"", b"no key"])
    def test_other_files(self, tmp_path, certificate, content):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(InvalidArgumentError, match="key must be"):
            certificate.signed(tmp_path / "key")

    def test_without_the_library(self, tmp_path, monkeypatch):
        name = "cryptography.hazmat.primitives.asymmetric.ed25519"
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=r"botorch-dp\[signatures\]"):
            create_key(tmp_path / "key")


class TestSignature:
    def test_survives_json(self, tmp_path, ledger, certificate):
        public = create_key(tmp_path / "key")
        signed = certificate.signed(tmp_path / "key")
        again = Certificate.from_json(signed.to_json())
        assert again == signed
        assert again.digest == certificate.digest
        again.verify(ledger, public_key=public).require()
        assert again.verify(public_key=public).ok  # without the ledger

    def test_of_another_key(self, tmp_path, ledger, certificate):
        create_key(tmp_path / "key")
        other = create_key(tmp_path / "other")
        signed = certificate.signed(tmp_path / "key")
        with pytest.raises(CertificateError, match="not that of the given public key"):
            signed.verify(ledger, public_key=other).require()

    def test_a_missing_one(self, tmp_path, ledger, certificate):
        public = create_key(tmp_path / "key")
        found = certificate.verify(ledger, public_key=public)
        assert found.findings == ("The certificate is not signed.",)

    @pytest.mark.parametrize("value", ["", "?", "AAAA"])
    def test_rubbish(self, tmp_path, certificate, value):
        public = create_key(tmp_path / "key")
        signed = certificate.signed(tmp_path / "key")
        key = signed.signature.public_key
        for signature in (
            Signature(key, value),
            replace(signed.signature, public_key=""),
        ):
            broken = replace(certificate, signature=signature)
            assert not broken.verify(public_key=public).ok

    def test_does_not_survive_a_change(self, tmp_path, certificate):
        create_key(tmp_path / "key")
        signed = certificate.signed(tmp_path / "key")
        assert signed.with_declaration(Declaration(owner="A")).signature is None

    def test_nothing_was_checked(self, certificate):
        found = certificate.verify()
        assert not found.ok
        assert "Nothing was checked" in str(found)
