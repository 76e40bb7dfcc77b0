"""Authentication by a secret that all processes of a cluster share.

Who accepts a connection sends a fresh challenge; who has opened it answers with
a keyed hash. Without a secret a cluster stays on one machine.
"""

import hmac
import ipaddress
import pathlib
import secrets
import socket


def read_secret(path: str | None) -> bytes:
  """Returns the secret in a file, empty if `path` is None.

  Raises `OSError` if it cannot be read, `ValueError` if it is too short, or
  others may read it.
  """
  if path is None:
    return b""
  file = pathlib.Path(path)
  if file.is_dir():
    raise ValueError(f"The secret {path!r} must be a file, not a folder.")
  if file.stat().st_mode & 0o077:
    raise ValueError(f"The secret {path!r} must not be readable by others.")
  secret = file.read_bytes().strip()
  if len(secret) < 16:
    raise ValueError(f"The secret {path!r} must have at least 16 bytes.")
  return secret


def check_host(host: str, *, secret: bytes) -> None:
  """Raises `ValueError` unless `host` may be listened on with this secret."""
  address = ipaddress.ip_address(socket.gethostbyname(host))
  if not secret and not address.is_loopback:
    raise ValueError(
        f"Without a shared secret nodes listen on the loopback interface only, "
        f"got {host!r}. Give a file with --secret."
    )


def make_challenge() -> str:
  """Returns a challenge that has never been sent before."""
  return secrets.token_hex(16)


def answer(challenge: str, *, secret: bytes) -> str:
  """Returns the proof that the secret is known."""
  return hmac.new(secret, challenge.encode(), "sha256").hexdigest()


def is_right(challenge: str, got: object, *, secret: bytes) -> bool:
  """Returns whether `got` is the answer to `challenge`."""
  want = answer(challenge, secret=secret)
  return isinstance(got, str) and hmac.compare_digest(got, want)
