"""Starts the containers of pods as processes of this machine.

Knows what `docs/deploy/kubernetes.yaml` uses: environment, mounts, and when a
pod is replaced. Paths are replaced in the text of commands. Pods have loopback
addresses. `Kubelet` starts pods; `Cluster` stands in for the rest of Kubernetes,
where there is none.
"""

import itertools
import os
import pathlib
import re
import signal
import subprocess
from typing import Any, NamedTuple

from bamboo_jax.cluster import children

_PATH = re.compile(r'(?<=[\s="])/[\w./-]+')
INDEX = "jobset.sigs.k8s.io/job-index"


class Pod(NamedTuple):
  """A pod that runs, or has ended."""

  job: str
  name: str
  process: subprocess.Popen[bytes]

  def signal(self, number: int) -> None:
    """Signals the first process; SIGKILL all of them."""
    if number == signal.SIGKILL:
      os.killpg(self.process.pid, number)
    else:
      self.process.send_signal(number)


def find_container(template: dict[str, Any]) -> dict[str, Any]:
  """Returns the container of the pods of a job."""
  (container,) = template["spec"]["template"]["spec"]["containers"]
  return container


class Kubelet:
  """Starts pods in folders of their own.

  Attributes:
    folder: Those of pods, claims and secrets, by name.
  """

  def __init__(self, folder, environ) -> None:
    self.folder, self._environ = pathlib.Path(folder), environ

  def start(self, pod, *, job, address, claims) -> Pod:
    """Starts the container of a pod.

    Args:
      pod: Metadata and specification.
      job: Name of its job.
      address: Where it listens.
      claims: Names of the claims of volumes that there are.
    """
    name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    fields = {"metadata.name": name, "status.podIP": address} | {
        f"metadata.labels['{label}']": value for label, value in labels.items()
    }
    environ = dict(self._environ)
    for entry in container["env"]:
      value = entry.get("value")
      if value is None:
        value = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
      environ[entry["name"]] = value
    folder = self.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    mounts = {"/tmp": folder, **self._mount(pod["spec"], container, claims)}
    (script,) = container["args"]
    with open(folder / "log", "ab") as log:
      process = subprocess.Popen(
          [*container["command"], _place(script, mounts)],
          env=environ,
          cwd=folder,
          stdout=log,
          stderr=log,
          preexec_fn=children.die_with_parent,
      )
    return Pod(job, name, process)

  def _mount(self, spec, container, claims) -> dict[str, pathlib.Path]:
    """Returns the folder of each path at which a volume is mounted."""
    volumes = {}
    for volume in spec["volumes"]:
      if (claim := volume.get("persistentVolumeClaim")) is not None:
        assert claim["claimName"] in claims, claim
        volumes[volume["name"]] = self.folder / claim["claimName"]
      else:
        volumes[volume["name"]] = self.folder / volume["secret"]["secretName"]
    mounts = container["volumeMounts"]
    return {m["mountPath"]: volumes[m["name"]] for m in mounts}


def _place(script, mounts) -> str:
  """Returns a script with paths of this machine."""

  def place(match):
    for mount, folder in mounts.items():
      if match[0].startswith(f"{mount}/"):
        return f"{folder}{match[0].removeprefix(mount)}"
    raise ValueError(f"Nothing is mounted at {match[0]}.")

  return _PATH.sub(place, script)


class Cluster:
  """Starts the pods of all jobs, and replaces those that fail.

  Attributes:
    pods: The current pods.
  """

  def __init__(self, documents, kubelet) -> None:
    kinds = {}
    for document in documents:
      kinds.setdefault(document["kind"], []).append(document)
    (self._set,) = kinds["JobSet"]
    claims = kinds["PersistentVolumeClaim"]
    self._claims = [claim["metadata"]["name"] for claim in claims]
    self._kubelet = kubelet
    self._numbers = itertools.count(1)
    self._done: set[str] = set()
    self.pods: list[Pod] = []

  def start(self) -> None:
    """Starts the pods of all jobs."""
    for job in self._set["spec"]["replicatedJobs"]:
      for index in range(job["replicas"]):
        for _ in range(job["template"]["spec"].get("parallelism", 1)):
          self.pods.append(self._start(job, index))

  def tend(self) -> bool:
    """Replaces failed pods; returns whether all jobs are complete.

    A job without `completions` is complete once a pod has succeeded, and none
    is left.
    """
    for i, pod in enumerate(self.pods):
      code = pod.process.poll()
      if code == 0:
        self._done.add(pod.job)
      elif code is not None and pod.job not in self._done:
        name, index = re.fullmatch(r"bamboo-(\w+)-(\d+)", pod.job).groups()
        jobs = self._set["spec"]["replicatedJobs"]
        job = next(job for job in jobs if job["name"] == name)
        self.pods[i] = self._start(job, int(index))
    return all(pod.process.poll() is not None for pod in self.pods)

  def close(self) -> None:
    """Kills all pods."""
    for pod in self.pods:
      if pod.process.poll() is None:
        pod.signal(signal.SIGKILL)
        pod.process.wait()

  def _start(self, job, index) -> Pod:
    number = next(self._numbers)
    name = f"bamboo-{job['name']}-{index}"
    template = job["template"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    metadata = {"name": f"{name}-{number}", "labels": labels | {INDEX: str(index)}}
    return self._kubelet.start(
        {"metadata": metadata, "spec": template["spec"]},
        job=name,
        address=f"127.0.77.{number}",
        claims=self._claims,
    )
