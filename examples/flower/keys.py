"""Makes a SuperLink's certificate and a key for each organisation: keys.py FOLDER HOST ORGANISATION ..."""

import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

DAYS = 365


def main(folder: str, host: str, *organisations: str) -> None:
    """`server/` is for the SuperLink's machine, `ca.pem` for everybody, `NAME/` for one organisation."""
    root = Path(folder)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca = certificate("Federation CA", authority, "Federation CA", authority, ca=True)
    leaf = certificate(host, server, "Federation CA", authority, host=host)
    write(root / "ca.pem", ca.public_bytes(Encoding.PEM))
    write(root / "server" / "server.pem", leaf.public_bytes(Encoding.PEM))
    write(root / "server" / "server.key", private(server, PrivateFormat.PKCS8))
    for name in organisations:
        key = ec.generate_private_key(ec.SECP384R1())
        write(root / name / "node.key", private(key, PrivateFormat.OpenSSH))
        write(root / name / "node.pub", key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def certificate(name: str, key, issuer: str, signer, ca: bool = False, host: str | None = None):
    """A certificate of a public key, signed by another key; of a host, if one is given."""
    named = lambda text: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if ca:
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        usage = dict.fromkeys([*others, "encipher_only", "decipher_only"], False)
        builder = builder.add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True
        )
    if host:
        names = [x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA384())


def private(key, form: PrivateFormat) -> bytes:
    """A private key as text."""
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def write(path: Path, contents: bytes) -> None:
    """A new file that only its owner may read; existing keys are never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(contents)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER HOST ORGANISATION ...")
    main(*sys.argv[1:])
