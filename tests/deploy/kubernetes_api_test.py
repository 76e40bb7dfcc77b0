"""A run on the control plane of Kubernetes; its nodes are processes here.

API server, controllers and scheduler are those of Kubernetes: they create, bind
and replace pods, and end the jobs. The test does the work of JobSet's
controller, which makes a job for each zone, and of the kubelets.
"""

import base64
import copy
import secrets
import signal
import time
import urllib.error

from absl.testing import absltest
import yaml

from tests.deploy import control_plane, kubelet, kubernetes_test, runs

_PODS = "/api/v1/namespaces/default/pods"
_ZONE = "topology.kubernetes.io/zone"
# Services may have no loopback addresses, so pods report others.
_HERE, _REPORTED = "127.0.78.", "198.51.100."
_TAINTS = ("cloud.google.com/gke-spot", "nvidia.com/gpu")
_READY = [{"type": "Ready", "status": "True"}]


def make_node(name, labels, *, is_spot):
  """Returns a machine; a spot machine has a GPU and taints."""
  size = {"cpu": "16", "memory": "64Gi", "pods": "9"}
  size |= {"nvidia.com/gpu": "1"} if is_spot else {}
  taints = [{"key": k, "effect": "NoSchedule"} for k in _TAINTS * is_spot]
  return {
      "apiVersion": "v1",
      "kind": "Node",
      "metadata": {"name": name, "labels": labels},
      "spec": {"taints": taints},
      "status": {"capacity": size, "allocatable": size, "conditions": _READY},
  }


def make_volume():
  """Returns a volume that claims may have."""
  return {
      "apiVersion": "v1",
      "kind": "PersistentVolume",
      "metadata": {"name": "nfs"},
      "spec": {
          "capacity": {"storage": "100Gi"},
          "accessModes": ["ReadWriteMany"],
          "nfs": {"server": "192.0.2.9", "path": "/x"},
      },
  }


def make_jobs(job_set):
  """Yields the jobs that JobSet's controller makes of a set."""
  name = job_set["metadata"]["name"]
  for replicated in job_set["spec"]["replicatedJobs"]:
    for index in range(replicated["replicas"]):
      job = copy.deepcopy(replicated["template"])
      key = f"{name}-{replicated['name']}-{index}"
      pod = job["spec"]["template"]
      pod["metadata"]["labels"] |= {kubelet.INDEX: str(index)}
      for terms in pod["spec"].get("affinity", {}).values():
        for (term,) in terms.values():
          select_labels(term, pod["metadata"]["labels"])
      metadata = {"name": key}
      yield {"apiVersion": "batch/v1", "kind": "Job", **job} | {"metadata": metadata}


def select_labels(term, labels):
  """Does what API servers from Kubernetes 1.31 on do with an affinity."""
  own = [
      {"key": key, "operator": operator, "values": [labels[key]]}
      for name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
      for key in term.pop(name, [])
  ]
  selector = dict(term["labelSelector"])
  term["labelSelector"] = selector | {"matchExpressions": own}


class Machines:
  """Does the work of all kubelets."""

  def __init__(self, plane, own) -> None:
    self._plane, self._kubelet = plane, own
    self._pods, self._killed_at_secs = {}, {}
    self._addresses = {}

  def find(self, name):
    return self._pods[name]

  def close(self):
    for pod in self._pods.values():
      if pod.process.poll() is None:
        pod.signal(signal.SIGKILL)
        pod.process.wait()

  def tend(self):
    """Does once what kubelets do all the time."""
    for pod in self._plane.call("GET", _PODS)["items"]:
      name = pod["metadata"]["name"]
      if name not in self._pods and "nodeName" in pod["spec"]:
        self._start(pod)
      elif name in self._pods:
        self._tend(pod)

  def _start(self, pod):
    name = pod["metadata"]["name"]
    number = len(self._addresses) + 1
    address = self._addresses.setdefault(name, f"{_HERE}{number}")
    services = {}
    if not pod["metadata"]["labels"]["app"].endswith("-store"):
      services = self._find_services()
      if not services:
        return  # There is no store yet, to whose name an address belongs.
    core = "/api/v1/namespaces/default"
    claims = self._plane.call("GET", f"{core}/persistentvolumeclaims")["items"]
    bound = [c for c in claims if c["status"]["phase"] == "Bound"]
    for volume in pod["spec"]["volumes"]:
      if (secret := volume.get("secret")) is not None:
        self._write(secret["secretName"])
    started = self._kubelet.start(
        pod,
        job=pod["metadata"]["labels"]["job-name"],
        address=address,
        claims=[claim["metadata"]["name"] for claim in bound],
        services=services,
    )
    self._pods[name] = started
    address = address.replace(_HERE, _REPORTED)
    self._report(name, phase="Running", podIP=address, conditions=_READY)

  def _tend(self, pod):
    name = pod["metadata"]["name"]
    own = self._pods[name]
    code = own.process.poll()
    if secs := pod["metadata"].get("deletionGracePeriodSeconds"):
      if name not in self._killed_at_secs:
        self._killed_at_secs[name] = time.monotonic() + secs
        if code is None:
          own.signal(signal.SIGTERM)
      elif code is None and time.monotonic() > self._killed_at_secs[name]:
        own.signal(signal.SIGKILL)
    if code is None or pod["status"]["phase"] in ("Succeeded", "Failed"):
      if code is not None and "deletionTimestamp" in pod["metadata"]:
        self._delete(name)
    elif code and pod["spec"]["restartPolicy"] == "OnFailure":
      self._start(pod)
    else:
      phase = "Failed" if code else "Succeeded"
      self._report(name, phase=phase, conditions=[])

  def _delete(self, name):
    now = {"gracePeriodSeconds": 0}
    self._plane.call("DELETE", f"{_PODS}/{name}", now, kind="json")

  def _report(self, name, **status):
    self._plane.call("PATCH", f"{_PODS}/{name}/status", {"status": status})

  def _find_services(self):
    """Returns the addresses of services that have some."""
    path = "/api/v1/namespaces/default/endpoints"
    services = {}
    for found in self._plane.call("GET", path)["items"]:
      for subset in found.get("subsets", []):
        for port in subset["ports"]:
          name = f"{found['metadata']['name']}:{port['port']}"
          for address in subset.get("addresses", []):
            ip = address["ip"].replace(_REPORTED, _HERE)
            services[name] = f"{ip}:{port['port']}"
    return services

  def _write(self, name):
    path = f"/api/v1/namespaces/default/secrets/{name}"
    folder = self._kubelet.folder / name
    folder.mkdir(exist_ok=True)
    for key, value in self._plane.call("GET", path)["data"].items():
      (folder / key).write_bytes(base64.b64decode(value))
      (folder / key).chmod(0o600)


@absltest.skipUnless(control_plane.has_programs(), "needs kube-apiserver (docs/guides)")
class KubernetesApiTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    pods = self.folder / "pods"
    self.workdir = pods / "bamboo-shared" / "run"
    self.workdir.mkdir(parents=True)
    self.plane = control_plane.ControlPlane(self.folder / "plane", self.addCleanup)
    for zone in "abc":
      node = make_node(f"gpu-{zone}", {_ZONE: zone}, is_spot=True)
      self.plane.create("/api/v1/nodes", node)
    labels = {_ZONE: "a", "capacity": "on-demand"}
    node = make_node("cpu", labels, is_spot=False)
    self.plane.create("/api/v1/nodes", node)
    self.plane.create("/api/v1/persistentvolumes", make_volume())
    self.secret = self.folder / "secret"
    self.secret.write_text(secrets.token_hex())
    self.secret.chmod(0o600)
    self.plane.kubectl(
        *("create", "secret", "generic", "bamboo"), f"--from-file=secret={self.secret}"
    )
    job_set, *others = kubernetes_test.read()
    _, agents = job_set["spec"]["replicatedJobs"]
    agents["template"]["spec"]["parallelism"] = 1
    given = {"CONFIG": str(self.config), "NODES": "3"}
    for entry in kubelet.find_container(agents["template"])["env"]:
      if entry["name"] in given:
        entry["value"] = given[entry["name"]]
    served = self.plane.kubectl("api-versions").split()
    for other in others:
      if other["kind"] == "PodDisruptionBudget":
        if other["apiVersion"] not in served:  # Until Kubernetes 1.20.
          other["apiVersion"] = "policy/v1beta1"
        self.policy = other["apiVersion"]
    # Versions before 1.25 have no `podFailurePolicy`, and ignore it.
    self.plane.kubectl(
        *("apply", "--validate=false", "--filename=-"),
        input=yaml.safe_dump_all((*others, *make_jobs(job_set))),
    )
    self.machines = Machines(self.plane, kubelet.Kubelet(pods, self.environ))
    self.addCleanup(self.machines.close)
    self.tend = self.machines.tend

  def find_member(self, job, other_than=()):
    """Returns the member that a pod of the job is, once it has joined."""

    def find():
      names = [*self.members()]
      own = [n for n in names if n.startswith(job) and n not in other_than]
      return own[0] if own else None

    return self.wait_for(find, f"member of {job}")

  def is_complete(self):
    jobs = self.plane.call("GET", "/apis/batch/v1/namespaces/default/jobs")
    ended = [
        condition["type"]
        for job in jobs["items"]
        for condition in job["status"].get("conditions", [])
        if condition["status"] == "True" and condition["type"] != "SuccessCriteriaMet"
    ]
    return ended == ["Complete"] * len(jobs["items"])

  def test_a_run(self):
    first = [self.find_member(f"bamboo-agents-{i}") for i in range(3)]
    nodes = {
        pod["metadata"]["labels"]["job-name"]: pod["spec"]["nodeName"]
        for pod in self.plane.call("GET", _PODS)["items"]
    }
    self.assertEqual(nodes.pop("bamboo-store-0"), "cpu")
    self.assertCountEqual(nodes.values(), ["gpu-a", "gpu-b", "gpu-c"])
    self.machines.find(first[0]).signal(signal.SIGKILL)
    self.find_member("bamboo-agents-0", first)
    self.plane.kubectl("delete", "pod", "--wait=false", first[1])
    self.find_member("bamboo-agents-1", first)
    self.check_budget(first[2])
    self.released.touch()
    self.wait_for(self.is_complete, "end")
    self.check_state()

  def check_budget(self, name):
    """Checks that no pod is evicted while there are not more than NODES."""
    eviction = {"apiVersion": self.policy, "kind": "Eviction", "metadata": {"name": name}}
    with self.assertRaises(urllib.error.HTTPError) as caught:
      self.plane.create(f"{_PODS}/{name}/eviction", eviction)
    self.assertEqual(caught.exception.code, 429)
