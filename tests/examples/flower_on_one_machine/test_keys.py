"""Certificates and keys: they belong together, and only their owner can read them."""

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from examples.flower_on_one_machine.keys import write_certificates, write_node_key


def test_certificates(tmp_path):
    write_certificates(tmp_path)
    root, server = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["localhost"]
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0


def test_node_keys(tmp_path):
    path = tmp_path / "node.key"
    public = load_ssh_public_key(write_node_key(path).read_bytes())
    private = load_ssh_private_key(path.read_bytes(), None)
    assert private.public_key() == public
    assert path.stat().st_mode & 0o077 == 0
