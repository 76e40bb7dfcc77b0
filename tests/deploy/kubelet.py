"""Starts the containers of the pods of `docs/deploy/kubernetes.yaml` as processes here.

Knows what that file uses: environment and mounts. Paths are replaced in the text of
commands. Pods have loopback addresses.
"""

import re
import subprocess

from bamboo_jax.cluster import children

_PATH = re.compile(r'(?<=[\s="])/[\w./-]+')
_INDEX = "jobset.sigs.k8s.io/job-index"


def find_container(template):
  """Returns the container of the pods of a job."""
  (container,) = template["spec"]["template"]["spec"]["containers"]
  return container


def start_pods(documents, folder, environ):
  """Starts a pod for each job; returns the processes, in the order of their indices.

  Claims, secrets and pods have folders of their names in `folder`.
  """
  kinds = {document["kind"]: document for document in documents}
  (job,) = kinds["JobSet"]["spec"]["replicatedJobs"]
  template = job["template"]["spec"]["template"]
  processes = []
  for index in range(job["replicas"]):
    name = f"bamboo-{job['name']}-{index}-{index + 1}"
    labels = template["metadata"]["labels"] | {_INDEX: f"{index}"}
    fields = {"metadata.name": name, "status.podIP": f"127.0.77.{index + 1}"} | {
        f"metadata.labels['{label}']": value for label, value in labels.items()
    }
    container, own = find_container(job["template"]), folder / name
    own.mkdir()
    given = {
        entry["name"]: entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container["env"]
    }
    mounts = {"/tmp": own, **_mount(template["spec"], container, folder)}
    (script,) = container["args"]
    with open(own / "log", "wb") as log:
      processes.append(
          subprocess.Popen(
              [*container["command"], _place(script, mounts)],
              env={**environ, **given},
              cwd=own,
              stdout=log,
              stderr=log,
              preexec_fn=children.die_with_parent,
          )
      )
  return processes


def _mount(spec, container, folder):
  """Returns the folder of each path at which a volume is mounted."""
  names = {}
  for volume in spec["volumes"]:
    claim = volume.get("persistentVolumeClaim")
    names[volume["name"]] = claim["claimName"] if claim else volume["secret"]["secretName"]
  return {m["mountPath"]: folder / names[m["name"]] for m in container["volumeMounts"]}


def _place(script, mounts):
  """Returns a script with paths of this machine."""

  def place(match):
    for mount, folder in mounts.items():
      if match[0].startswith(f"{mount}/"):
        return f"{folder}{match[0].removeprefix(mount)}"
    raise ValueError(f"Nothing is mounted at {match[0]}.")

  return _PATH.sub(place, script)
