"""Records of a run, each made once: the only judge of who made one.

A record is never changed. If several processes make the same key, one of them
wins, and all read its value. So a process that got no answer makes the same call
again, and it does not matter which of its writes takes effect. `mark` and `marks`
are values of one writer each.

The place is a folder that all nodes share, or a bucket: s3://, gs:// or az://.
Every value is signed with a key that follows from the secret of the run.
"""

from collections.abc import Iterator
import contextlib
import datetime
import errno
import hashlib
import hmac
import json
import os
import pathlib
import re
import tempfile
from typing import Any

import msgspec

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.net import identity as identity_lib

_NAME = "records"  # Below the workdir of the run.
_PART = ".part-"  # Prefix of files that have no name yet.
_TIMEOUT = datetime.timedelta(seconds=3)  # Of one request to a bucket.
_RETRIES: Any = {
    "max_retries": 4,
    "backoff": {
        "init_backoff": datetime.timedelta(milliseconds=50),
        "max_backoff": datetime.timedelta(milliseconds=400),
        "base": 2,
    },
    "retry_timeout": _TIMEOUT,
}
_NO_LIMIT = 1 << 30  # Of tries, but for their time.
_ENDPOINTS = ("AWS_ENDPOINT_URL", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT")
_NO_BUCKET = "NoSuchBucket|ContainerNotFound"
# What an answer means, by a text in it; the first that fits.
_CAUSES = (
    ("there is no such bucket", _NO_BUCKET),
    ("no credentials were found", r"http://169\.254\.169\.254"),  # Asked after all others.
    ("its credentials have expired", "ExpiredToken|TokenExpired|RequestExpired"),
    ("the clock of this machine is off", "RequestTimeTooSkewed|RequestTimeSkewed"),
    (
        "it is in another region, which AWS_REGION must name",
        "configured region|PermanentRedirect|AuthorizationHeaderMalformed",
    ),
    ("its credentials do not permit this", "code: 40[13] |NoCredentials|InvalidAccessKeyId"),
)
_PIECE_BYTES = 16 << 20  # Of one request, which must end within a timeout.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class LostError(OSError):
  """The place has lost records, ignores conditions, or has damaged ones."""


class Records:
  """The records of a run; calls block, and raise `OSError`."""

  def __init__(self, workdir: str | os.PathLike[str], key: bytes) -> None:
    """Opens the records below a folder or URL; `key` signs them."""
    where = os.fspath(workdir)
    self.where = f"{where.rstrip('/')}/{_NAME}"
    self._place: Bucket | Folder = Bucket(self.where) if "://" in where else Folder(self.where)
    self._key = key

  def make(self, key: str, value: Any, kind: Any = Any) -> Any:
    """Returns the value of a key: `value` if it had none; read, not believed."""
    self._place.create(key, self._seal(key, value))
    if (found := self.find(key, kind)) is None:
      raise LostError(f"{self.where}/{key} is not there right after it was made.")
    return found

  def find(self, key: str, kind: Any = Any) -> Any:
    """Returns the value of a key as a `kind`, None if there is none."""
    content = self._place.read(key)
    return None if content is None else self._open(key, content, kind)

  def newest(self, name: str, after: int) -> int:
    """Returns the last of the numbers of NAME/N that follow `after` without a gap.

    It is `after` if there is none. The number of reads grows with the logarithm.
    """
    step = 1
    while self._place.read(f"{name}/{after + step}") is not None:
      step *= 2
    there, missing = after + step // 2, after + step
    while missing - there > 1:
      middle = (there + missing) // 2
      if self._place.read(f"{name}/{middle}") is None:
        missing = middle
      else:
        there = middle
    return there

  def follow(self, name: str, after: int, kind: Any = Any) -> list[Any]:
    """Returns the records NAME/N that follow `after`, in order."""
    found: list[Any] = []
    while (value := self.find(f"{name}/{after + len(found) + 1}", kind)) is not None:
      found.append(value)
    return found

  def mark(self, key: str, value: Any) -> None:
    """Writes a key of which this is the only writer."""
    self._place.put(key, self._seal(key, value))

  def marks(self, name: str) -> dict[str, Any]:
    """Returns the values of NAME/..., by the rest of the key; may lag behind."""
    found = {rest: self.find(f"{name}/{rest}") for rest in self.names(name)}
    return {rest: value for rest, value in found.items() if value is not None}

  def names(self, name: str) -> list[str]:
    """Returns the rest of each key NAME/..., without its value; may lag behind."""
    return [key.removeprefix(f"{name}/") for key in self._place.keys(name)]

  def drop(self, key: str) -> None:
    """Removes a mark."""
    self._place.delete(key)

  def probe(self, who: str) -> None:
    """Raises `LostError` if the place takes a key twice; `OSError` if none."""
    key = f"probe/{who}"
    if [self.make(key, number) for number in (1, 2)] != [1, 1]:
      raise LostError(
          f"{self.where} replaces what is there, though asked to create it only if it is "
          "absent, so it cannot tell which nodes are in the run. Name another --workdir."
      )
    self.drop(key)

  def _seal(self, key: str, value: Any) -> bytes:
    text = json.dumps(json_lib.to_plain(value))
    return f"{self._sign(key, text)}{text}".encode()

  def _open(self, key: str, content: bytes, kind: Any) -> Any:
    text = content.decode(errors="replace")
    if not hmac.compare_digest(self._sign(key, text[64:]).encode(), text[:64].encode()):
      raise LostError(f"{self.where}/{key} is damaged, or signed with another secret.")
    return msgspec.convert(json.loads(text[64:]), kind)

  def _sign(self, key: str, text: str) -> str:
    return hmac.new(self._key, f"{key}\0{text}".encode(), hashlib.sha256).hexdigest()


def open_folder(workdir: str | os.PathLike[str], place: str = "") -> Records:
  """Returns the records of a folder, signed with its own secret, which the first process draws.

  With `place`, a URL, they are there.
  """
  secret = identity_lib.read_secret(identity_lib.draw_secret(workdir))
  return Records(place or workdir, identity_lib.find_entry_key(secret))


class Folder:
  """Records as files of a folder; needs hard links, and no locks.

  All calls block, and raise `OSError`; those of `Bucket` are the same.
  """

  def __init__(self, path: str) -> None:
    self._path = pathlib.Path(path)

  def create(self, key: str, content: bytes) -> None:
    """Makes a key, unless it is there; only reading tells who made it."""
    with self._written(key, content) as part:
      try:
        os.link(part, self._path / key)
      except FileExistsError:
        pass  # Made by another, or by an earlier try of this process.
      except OSError as error:
        if error.errno not in _NO_LINKS:
          raise
        why = "its file system has no hard links, which a run needs; name another --workdir"
        raise OSError(error.errno, why) from error

  def put(self, key: str, content: bytes) -> None:
    with self._written(key, content) as part:
      os.replace(part, self._path / key)

  def read(self, key: str) -> bytes | None:
    try:
      with open(self._path / key, "rb") as file:  # NFS asks its server on open.
        return file.read()
    except FileNotFoundError:
      return None

  def keys(self, prefix: str) -> list[str]:
    """Returns the keys PREFIX/NAME; may lag behind."""
    try:
      names = sorted(os.listdir(self._path / prefix))
    except FileNotFoundError:
      return []
    return [f"{prefix}/{name}" for name in names if not name.startswith(_PART)]

  def delete(self, key: str) -> None:
    (self._path / key).unlink(missing_ok=True)

  @contextlib.contextmanager
  def _written(self, key: str, content: bytes) -> Iterator[str]:
    """Writes a file that has no name of a key yet; syncs before and after it gets one."""
    path = self._path / key
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      fd, part = tempfile.mkstemp(dir=path.parent, prefix=_PART)
      try:
        with open(fd, "wb") as file:
          file.write(content)
          file.flush()
          os.fsync(fd)
        yield part
      finally:
        pathlib.Path(part).unlink(missing_ok=True)
      for folder in dict.fromkeys((path.parent, self._path, self._path.parent)):
        base.sync(folder)
    except OSError as error:  # It names a file of ours, or none.
      raise OSError(error.errno, error.strerror, str(path)) from error


class Bucket:
  """Records as objects of a bucket, by its URL."""

  def __init__(self, url: str, *, timeout: datetime.timedelta | None = None) -> None:
    """Opens a place; `timeout` is of a request, and of all tries of one."""
    import obstore  # Runs in a folder do without it.
    from obstore import exceptions, store

    self._url, self._obstore, self._exceptions = url, obstore, exceptions
    options: Any = {"timeout": timeout or _TIMEOUT}
    retries: Any = _RETRIES
    if timeout:
      retries = {**_RETRIES, "retry_timeout": timeout, "max_retries": _NO_LIMIT}
    if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
      options["allow_http"] = True  # Of a server on this machine.
    try:
      self._place = store.from_url(url, client_options=options, retry_config=retries)
    except exceptions.BaseError as error:
      raise ValueError(f"{url} is no folder, and no bucket: {_to_line(error)}") from error

  def create(self, key: str, content: bytes) -> None:
    with self._telling():
      try:
        self._obstore.put(self._place, key, content, mode="create", use_multipart=False)
      except self._exceptions.AlreadyExistsError:
        pass  # Perhaps made by this call, whose first answer was lost.

  def put(self, key: str, content: bytes) -> None:
    with self._telling():
      self._obstore.put(self._place, key, content, use_multipart=False)

  def read(self, key: str) -> bytes | None:
    with self._telling():
      try:
        return bytes(self._obstore.get(self._place, key).bytes())
      except FileNotFoundError as error:
        if re.search(_NO_BUCKET, str(error)):
          raise
        return None

  def keys(self, prefix: str) -> list[str]:
    return sorted(self.sizes(prefix))

  def sizes(self, prefix: str) -> dict[str, int]:
    """Returns the number of bytes of each key PREFIX/NAME, of all if it is empty."""
    with self._telling():
      listed = self._obstore.list(self._place, f"{prefix}/" if prefix else None).collect()
      return {entry["path"]: entry["size"] for entry in listed}

  def upload(self, key: str, file: pathlib.Path) -> None:
    """Writes a key, in pieces if it is large."""
    with self._telling():
      self._obstore.put(self._place, key, file)

  def download(self, key: str, size: int, file: pathlib.Path) -> None:
    """Writes the content of a key with `size` bytes to a file, piece by piece."""
    with self._telling(), open(file, "wb") as out:
      for start in range(0, size, _PIECE_BYTES):
        end = min(start + _PIECE_BYTES, size)
        out.write(self._obstore.get_range(self._place, key, start=start, end=end))

  def delete(self, key: str) -> None:
    with self._telling():
      try:
        self._obstore.delete(self._place, key)
      except FileNotFoundError:
        pass

  @contextlib.contextmanager
  def _telling(self) -> Iterator[None]:
    """Raises `OSError` for all errors of the bucket, of one line."""
    try:
      yield
    except (FileNotFoundError, self._exceptions.BaseError) as error:
      raise OSError(f"{self._url}: {explain(error)}") from error


def _to_line(error: Exception) -> str:
  return " ".join(f"{error}".partition("\n\nDebug source")[0].split())


def explain(error: Exception) -> str:
  """Returns an error of `obstore` as one line, first what it means."""
  line = _to_line(error)
  what = next((cause for cause, pattern in _CAUSES if re.search(pattern, line)), "no answer")
  return f"{what}: {line}"
