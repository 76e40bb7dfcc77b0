"""Stands in for Kubernetes: starts the containers of a JobSet as processes.

Knows what `docs/deploy/kubernetes.yaml` uses: environment, mounts, the names of
services, and when a pod is replaced. Paths and names are replaced in the text
of commands. Pods have loopback addresses.
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
_INDEX = "jobset.sigs.k8s.io/job-index"


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


class Cluster:
  """Starts the pods of all jobs, and replaces those that fail.

  Attributes:
    pods: The current pods.
  """

  def __init__(self, documents, folder, environ) -> None:
    kinds = {}
    for document in documents:
      kinds.setdefault(document["kind"], []).append(document)
    (self._set,) = kinds["JobSet"]
    self._services = kinds["Service"]
    claims = kinds["PersistentVolumeClaim"]
    self._claims = [claim["metadata"]["name"] for claim in claims]
    self._folder, self._environ = pathlib.Path(folder), environ
    self._numbers = itertools.count(1)
    self._addresses: dict[str, str] = {}  # By label `app`.
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
    app = template["metadata"]["labels"]["app"]
    address = f"127.0.77.{number}"
    if template["spec"]["restartPolicy"] == "OnFailure":  # The pod stays.
      address = self._addresses.setdefault(app, address)
    fields = {
        "metadata.name": f"{name}-{number}",
        "status.podIP": address,
        f"metadata.labels['{_INDEX}']": str(index),
    }
    container = find_container(job["template"])
    environ = dict(self._environ)
    for entry in container["env"]:
      value = entry.get("value")
      if value is None:
        value = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
      environ[entry["name"]] = value
    folder = self._folder / fields["metadata.name"]
    folder.mkdir(parents=True)
    mounts = {"/tmp": folder, **self._mount(template["spec"], container)}
    with open(folder / "log", "wb") as log:
      process = subprocess.Popen(
          [*container["command"], self._place(container["args"], mounts)],
          env=environ,
          cwd=folder,
          stdout=log,
          stderr=log,
          preexec_fn=children.die_with_parent,
      )
    return Pod(name, fields["metadata.name"], process)

  def _mount(self, spec, container) -> dict[str, pathlib.Path]:
    """Returns the folder of each path at which a volume is mounted."""
    volumes = {}
    for volume in spec["volumes"]:
      if (claim := volume.get("persistentVolumeClaim")) is not None:
        assert claim["claimName"] in self._claims, claim
        volumes[volume["name"]] = self._folder / claim["claimName"]
      else:
        volumes[volume["name"]] = self._folder / volume["secret"]["secretName"]
    mounts = container["volumeMounts"]
    return {m["mountPath"]: volumes[m["name"]] for m in mounts}

  def _place(self, arguments, mounts) -> str:
    """Returns a script with paths and services of this machine."""
    (text,) = arguments
    for service in self._services:
      address = self._addresses.get(service["spec"]["selector"]["app"])
      (port,) = service["spec"]["ports"]
      name = f"{service['metadata']['name']}:{port['port']}"
      text = text.replace(name, f"{address}:{port['port']}")

    def place(match):
      for mount, folder in mounts.items():
        if match[0].startswith(f"{mount}/"):
          return f"{folder}{match[0].removeprefix(mount)}"
      raise ValueError(f"Nothing is mounted at {match[0]}.")

    return _PATH.sub(place, text)
