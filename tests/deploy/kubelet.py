"""Runs the containers of the pods of `docs/deploy/kubernetes.yaml` as processes here.

Knows what that file uses: environment and mounts. Paths are replaced in the text of
commands. Pods have loopback addresses.
"""

import re
import subprocess

_PATH = re.compile(r'(?<=[\s="])/[\w./-]+')
_INDEX = "jobset.sigs.k8s.io/job-index"


def find_container(template):
  """Returns the container of the pods of a job."""
  (container,) = template["spec"]["template"]["spec"]["containers"]
  return container


def run_pods(documents, folder, environ):
  """Runs a pod for each job, one after another; returns how each ended.

  Claims, secrets and pods have folders of their names in `folder`.
  """
  kinds = {document["kind"]: document for document in documents}
  (job,) = kinds["JobSet"]["spec"]["replicatedJobs"]
  template = job["template"]["spec"]["template"]
  ended = []
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
    command = [*container["command"], _place(script, mounts)]
    env = {**environ, **given}
    ended.append(
        subprocess.run(command, env=env, cwd=own, capture_output=True, text=True, timeout=300)
    )
  return ended


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
