"""Runs the containers of the pods of `docs/deploy/kubernetes.yaml` as processes here.

Knows what that file uses: environment and mounts. Paths are replaced in the text of
commands. Pods have loopback addresses.
"""

import re
import subprocess

_PATH = re.compile(r'(?<=[\s="])/[\w./-]+')
_INDEX = "jobset.sigs.k8s.io/job-index"


def run_pods(job, folder, environ, **changes):
  """Runs a pod for each zone of a job, one after another; returns how each ended.

  Claims, secrets and pods have folders of their names in `folder`; `changes` are of `env`.
  """
  template = job["template"]["spec"]["template"]
  (container,) = template["spec"]["containers"]
  ended = []
  for index in range(job["replicas"]):
    name = f"bamboo-{job['name']}-{index}-{index + 1}"
    fields = {
        "metadata.name": name,
        "status.podIP": f"127.0.77.{index + 1}",
        f"metadata.labels['{_INDEX}']": f"{index}",
    }
    own = folder / name
    own.mkdir()
    given = {
        entry["name"]: entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container["env"]
    }
    mounts = {"/tmp": own, **_mount(template["spec"], container, folder)}
    (script,) = container["args"]
    command = [*container["command"], _place(script, mounts)]
    env = {**environ, **given, **changes}
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
