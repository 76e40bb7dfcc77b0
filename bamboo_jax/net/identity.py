"""Mutual TLS: authenticates the processes of a run to each other.

The key of the run's certificate authority is derived from its secret, so each
process issues itself a certificate, as `spiffe://RUN/ROLE/NAME`:

  secret --scrypt, HKDF--> key of the authority --signs--> certificate

Anyone who connects sees a certificate and can test guesses of the secret
offline; scrypt makes each guess cost a tenth of a second and 32 MiB. A user may
bring another authority instead. Both ends of a connection verify the other's
certificate, run and role. Without a secret the key is public, so a cluster then
stays on the loopback interface.
"""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import ipaddress
import os
import pathlib
import secrets
import socket
import ssl
import tempfile
from typing import Any
import urllib.parse

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf import hkdf
from cryptography.x509 import oid

from bamboo_jax import base
from bamboo_jax.net import addresses

_ROLES = ("agent", "worker")
_AUTHORITY = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, "bamboo")])
_EARLY = datetime.timedelta(days=1)  # The clocks of nodes may differ.
_LIFE = datetime.timedelta(days=365)
_SCRYPT = dict(n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32)
_LEAST_BYTES, _LEAST_DISTINCT = 16, 8  # Of a secret.
_FILES = ("authority.pem", "certificate.pem", "key.pem")


@dataclasses.dataclass(frozen=True)
class Identity:
  """The identity of a process, and the means to prove it.

  Attributes:
    server: For accepted connections.
    client: For opened connections.
    entry_key: Signs records of the run.
  """

  run: str
  server: ssl.SSLContext
  client: ssl.SSLContext
  entry_key: bytes

  def check(self, connection: Any, role: str, name: str | None = None) -> None:
    """Raises `OSError` unless the other end has this role and name.

    Args:
      connection: An `ssl.SSLSocket` or `ssl.SSLObject` after its handshake.
    """
    names = connection.getpeercert().get("subjectAltName", ())
    found = [text for kind, text in names if kind == "URI"]
    wanted = _uri(self.run, role, name or "")
    if not any(u == wanted or (not name and u.startswith(wanted)) for u in found):
      raise OSError(f"it is {' and '.join(found)}, not {wanted}")


def issue(
    secret: bytes, *, run: str, role: str, name: str, now: datetime.datetime | None = None
) -> Identity:
  """Returns the identity of a process that knows the secret of a run.

  Its certificate is signed by the authority derived from the secret.
  """
  curve = ec.SECP256R1()
  number = int.from_bytes(_derive(secret, b"bamboo authority", 48))
  key = ec.derive_private_key(number % (curve.group_order - 1) + 1, curve)
  sign = functools.partial(_sign, key=key, now=now or datetime.datetime.now(datetime.UTC))
  own = ec.generate_private_key(curve)
  names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(_uri(run, role, name))])
  return _make_identity(
      *(run, secret),
      sign(_AUTHORITY, key.public_key()),
      sign(x509.Name([]), own.public_key(), names),
      own.private_bytes(
          serialization.Encoding.PEM,
          serialization.PrivateFormat.PKCS8,
          serialization.NoEncryption(),
      ),
  )


def load(folder: pathlib.Path, *, run: str, role: str, name: str, secret: bytes = b"") -> Identity:
  """Returns an identity issued by the user's own authority.

  The folder holds authority.pem, certificate.pem and key.pem. Raises
  `ValueError` if one is missing or damaged, or names another node.
  """
  try:
    authority, certificate, key = ((folder / f).read_bytes() for f in _FILES)
    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ).value.get_values_for_type(x509.UniformResourceIdentifier)
    identity = _make_identity(run, secret, authority, certificate, key)
  except (OSError, ValueError, x509.ExtensionNotFound) as error:
    raise ValueError(f"{folder} must hold {', '.join(_FILES)} of this node: {error}.") from error
  now = datetime.datetime.now(datetime.UTC)
  if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
    raise ValueError(
        f"{folder / _FILES[1]} is valid from {found.not_valid_before_utc} to "
        f"{found.not_valid_after_utc}, and now it is {now}."
    )
  if (wanted := _uri(run, role, name)) not in names:
    raise ValueError(f"{folder / _FILES[1]} must name {wanted}, it names {names}.")
  return identity


def read_secret(path: str | None) -> bytes:
  """Returns the secret in a file, empty if `path` is None.

  Raises `OSError` if it cannot be read, `ValueError` if it is too easy to
  guess, or others may read it.
  """
  if path is None:
    return b""
  file = pathlib.Path(path)
  if file.is_dir():
    raise ValueError(f"The secret {path!r} must be a file, not a folder.")
  if file.stat().st_mode & 0o077:
    raise ValueError(f"The secret {path!r} must not be readable by others.")
  secret = file.read_bytes().strip()
  if len(secret) < _LEAST_BYTES or len({*secret}) < _LEAST_DISTINCT:
    raise ValueError(
        f"The secret {path!r} must have at least {_LEAST_BYTES} bytes, "
        f"{_LEAST_DISTINCT} of them different; draw one with "
        "head -c 32 /dev/urandom | base64."
    )
  return secret


def draw_secret(workdir: str | os.PathLike[str]) -> str:
  """Returns the path of WORKDIR/secret, drawn by the first process of a run."""
  file = pathlib.Path(workdir) / "secret"
  if not file.exists():
    file.parent.mkdir(parents=True, exist_ok=True)
    fd, drawn = tempfile.mkstemp(dir=file.parent, prefix=".secret.")  # For this user only.
    try:
      with base.naming(file), open(fd, "w") as content:
        content.write(secrets.token_hex(32))
        content.flush()
        os.fsync(fd)
      with contextlib.suppress(FileExistsError):
        os.link(drawn, file)
    finally:
      os.unlink(drawn)
  return str(file)


def find_entry_key(secret: bytes) -> bytes:
  """Returns the key that signs records of a run, by its secret."""
  return _derive(secret, b"bamboo entries", 32)


def check_host(host: str, *, secret: bytes) -> None:
  """Raises `ValueError` unless nodes may listen on `host` with this secret.

  Gloo (executor="spmd") is in the clear, so nodes on several machines need a
  private network.
  """
  try:
    address = ipaddress.ip_address(addresses.find(host, 0).parts[0])
  except socket.gaierror as error:
    raise ValueError(
        f"--host={host} is no address of this machine: {error.strerror}. Write "
        "it without brackets and without a port, as 10.0.0.7 or fd00::7."
    ) from error
  address = getattr(address, "ipv4_mapped", None) or address
  if address.is_unspecified:
    raise ValueError(
        f"--host={host} is all addresses of this machine, and others need one "
        "to connect to. Give the one that all nodes reach, such as 10.0.0.7: "
        "`hostname -I` lists them."
    )
  if address.version == 6 and address.is_link_local:
    raise ValueError(
        f"--host={host} is an address of one link only. Give one that all "
        "nodes reach, such as one of fd00::/8."
    )
  if not secret and not address.is_loopback:
    raise ValueError(
        f"Without a shared secret nodes listen on the loopback interface only, "
        f"got {host!r}. Give a file with --secret."
    )
  if address.is_global:
    raise ValueError(
        "Gloo may be unencrypted, so nodes listen on a private network only, got "
        f"{host!r}. Give --host an address such as of 10.0.0.0/8 or fd00::/8."
    )


def _uri(run: str, role: str, name: str) -> str:
  assert role in _ROLES, role
  parts = (urllib.parse.quote(part, safe="") for part in (run, role, name))
  return f"spiffe://{'/'.join(parts)}"


def _derive(secret: bytes, info: bytes, num_bytes: int) -> bytes:
  seed = hkdf.HKDF(hashes.SHA256(), num_bytes, salt=None, info=info)
  return seed.derive(_stretch(secret) if secret else b"none")


@functools.lru_cache(maxsize=8)
def _stretch(secret: bytes) -> bytes:
  """Returns a key that takes long to compute."""
  return hashlib.scrypt(secret, salt=b"bamboo", **_SCRYPT)


def _sign(
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    names: x509.SubjectAlternativeName | None = None,
    *,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
) -> bytes:
  """Returns a certificate; without names it is that of the authority."""
  builder = (
      x509.CertificateBuilder()
      .subject_name(subject)
      .issuer_name(_AUTHORITY)
      .public_key(public_key)
      .serial_number(x509.random_serial_number())
      .not_valid_before(now - _EARLY)
      .not_valid_after(now + _LIFE)
      .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), True)
  )
  if names is not None:
    builder = builder.add_extension(names, True)
  signed = builder.sign(key, hashes.SHA256())
  return signed.public_bytes(serialization.Encoding.PEM)


def _make_identity(
    run: str, secret: bytes, authority: bytes, certificate: bytes, key: bytes
) -> Identity:
  contexts = []
  with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "pem")  # No other user may enter the folder.
    pathlib.Path(file).write_bytes(certificate + key)
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
      context = ssl.SSLContext(side)
      context.minimum_version = ssl.TLSVersion.TLSv1_3
      context.check_hostname = False  # Names are those of nodes: see `check`.
      context.verify_mode = ssl.CERT_REQUIRED
      context.load_verify_locations(cadata=authority.decode())
      context.load_cert_chain(file)
      contexts.append(context)
  server, client = contexts
  return Identity(run, server, client, find_entry_key(secret))
