"""Starts the control plane of Kubernetes on this machine, and its clients.

The programs are those of Kubernetes: `kube-apiserver` with an etcd,
`kube-controller-manager`, `kube-scheduler` and `kubectl`, on loopback.
"""

import json
import os
import pathlib
import secrets
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
import yaml

from bamboo_jax.base import ports
from bamboo_jax.cluster import children
from bamboo_jax.cluster.store import private_etcd
from tests.launch import commands

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_CONTROLLERS = "job,disruption,endpoint,garbagecollector,persistentvolume-binder"
# They need nodes that report, or tokens of service accounts.
_ADMISSION = "ServiceAccount,TaintNodesByCondition"
_DEADLINE_SECS = 120


def has_programs():
  return all(map(shutil.which, (*PROGRAMS, "kubectl"))) and commands.has_etcd()


class ControlPlane:
  """An API server, controllers and a scheduler that answer.

  Attributes:
    config: File with which `kubectl` reaches them.
  """

  def __init__(self, folder, add_cleanup) -> None:
    self._folder, self._add_cleanup = pathlib.Path(folder), add_cleanup
    self._folder.mkdir()
    etcd = self._start_etcd()
    self._token = secrets.token_hex()
    tokens = self._folder / "tokens"
    tokens.write_text(f'{self._token},admin,admin,"system:masters"\n')
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    accounts = self._folder / "accounts"
    accounts.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    port = ports.free_port()
    self._url = f"https://127.0.0.1:{port}"
    self._start(
        "kube-apiserver",
        *(f"--etcd-servers={etcd}", f"--secure-port={port}"),
        *("--bind-address=127.0.0.1", "--advertise-address=192.0.2.1"),
        *("--endpoint-reconciler-type=none", f"--cert-dir={self._folder}"),
        *("--service-cluster-ip-range=192.0.2.0/24", "--allow-privileged"),
        *(f"--token-auth-file={tokens}", "--authorization-mode=RBAC"),
        f"--disable-admission-plugins={_ADMISSION}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={accounts}",
        f"--service-account-signing-key-file={accounts}",
    )
    self.config = self._folder / "config"
    self.config.write_text(self._describe())
    self._wait_ready()
    self._start_client("kube-controller-manager", f"--controllers={_CONTROLLERS}")
    self._start_client("kube-scheduler")

  def call(self, method, path, body=None, *, kind="merge-patch+json"):
    """Returns the answer to a request; `None` where there is no such thing."""
    request = urllib.request.Request(
        f"{self._url}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {self._token}", "Content-Type": f"application/{kind}"},
    )
    # The server makes a certificate of its own.
    context = ssl._create_unverified_context()
    try:
      with urllib.request.urlopen(request, context=context, timeout=60) as got:
        return json.load(got)
    except urllib.error.HTTPError as error:
      if error.code == 404:
        return None
      raise

  def create(self, path, document):
    """Creates an object below a path such as `/api/v1/nodes`."""
    return self.call("POST", path, document, kind="json")

  def kubectl(self, *arguments, **options):
    """Runs `kubectl`, which must exit with 0; returns its output."""
    done = subprocess.run(
        ["kubectl", f"--kubeconfig={self.config}", *arguments],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECS,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

  def _describe(self) -> str:
    name = {"name": "here"}
    cluster = {"server": self._url, "insecure-skip-tls-verify": True}
    context = {"cluster": "here", "user": "here", "namespace": "default"}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [name | {"cluster": cluster}],
            "users": [name | {"user": {"token": self._token}}],
            "contexts": [name | {"context": context}],
            "current-context": "here",
        }
    )

  def _start_etcd(self) -> str:
    client, peer = (f"http://127.0.0.1:{ports.free_port()}" for _ in range(2))
    self._start(
        private_etcd.find_binary(),
        *("--data-dir", self._folder / "etcd"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--unsafe-no-fsync"),
    )
    return client

  def _start_client(self, program, *arguments) -> None:
    said = subprocess.run([program, "--help"], capture_output=True, text=True)
    # Until Kubernetes 1.23 they also served without TLS, on all addresses.
    old = ("--port=0",) if " --port int" in said.stdout + said.stderr else ()
    self._start(
        program,
        *(f"--kubeconfig={self.config}", "--leader-elect=false"),
        *("--bind-address=127.0.0.1", f"--secure-port={ports.free_port()}"),
        *(f"--cert-dir={self._folder}", *old, *arguments),
    )

  def _start(self, program, *arguments) -> None:
    name = pathlib.Path(program).name
    with open(self._folder / f"{name}.log", "wb") as log:
      process = subprocess.Popen(
          [program, *arguments],
          cwd=self._folder,
          stdout=log,
          stderr=log,
          env={**os.environ, "HOME": str(self._folder)},
          preexec_fn=children.die_with_parent,
      )
    self._add_cleanup(process.wait)
    self._add_cleanup(process.kill)

  def _wait_ready(self) -> None:
    end_secs = time.monotonic() + _DEADLINE_SECS
    while True:
      try:
        if self.call("GET", "/api/v1/namespaces/default"):
          return
      except OSError as error:
        if time.monotonic() > end_secs:
          log = (self._folder / "kube-apiserver.log").read_text()
          raise TimeoutError(log[-2000:]) from error
      time.sleep(0.1)
