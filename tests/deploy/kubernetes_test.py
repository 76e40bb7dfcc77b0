"""A run on Kubernetes, whose pods are processes here; see `kubelet`.

The whole run takes half a minute, as six workers import JAX.
"""

import os
import re
import secrets
import signal
import subprocess

from absl.testing import parameterized
import kubernetes_validate
import yaml

from tests import samples
from tests.deploy import kubelet, runs
from tests.launch import commands

_FILE = commands.ROOT / "docs" / "deploy" / "kubernetes.yaml"
# Of JobSet v1alpha2, the fields that the file may have.
_JOB_SET = {"successPolicy", "replicatedJobs", "ttlSecondsAfterFinished"}
_REPLICATED_JOB = {"name", "replicas", "template"}


def read():
  return list(yaml.safe_load_all(_FILE.read_text()))


class KubernetesTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    pods = self.folder / "pods"
    self.workdir = pods / "bamboo-shared" / "run"
    self.workdir.mkdir(parents=True)
    self.secret = pods / "bamboo" / "secret"
    self.secret.parent.mkdir()
    self.secret.write_text(secrets.token_hex())
    self.secret.chmod(0o600)
    self.pods = pods
    documents = read()
    _, agents = documents[0]["spec"]["replicatedJobs"]
    self.agents = agents
    agents["template"]["spec"]["parallelism"] = 1
    given = {"CONFIG": str(self.config), "NODES": "3"}
    for entry in kubelet.find_container(agents["template"])["env"]:
      if entry["name"] in given:
        entry["value"] = given[entry["name"]]
    own = kubelet.Kubelet(pods, self.environ)
    self.cluster = kubelet.Cluster(documents, own)

  def wait_agent(self, zone, former=None):
    """Returns the pod of a zone once it is a member, and another one than `former`.

    A pod that fails before the store answers is replaced, so its number is not known ahead.
    """

    def find():
      (pod,) = (p for p in self.cluster.pods if p.job == f"bamboo-agents-{zone}")
      return pod if pod != former and pod.name in self.members() else None

    return self.wait_for(find, f"member of zone {zone} beside {former}")

  @samples.only_all
  def test_pods_are_replaced(self):
    self.tend = self.cluster.tend
    self.addCleanup(self.cluster.close)
    self.cluster.start()
    pods = [self.wait_agent(zone) for zone in range(3)]
    pods[0].signal(signal.SIGKILL)
    new = self.wait_agent(0, pods[0])
    self.assertEqual(self.members()[new.name].zone, "0")
    pods[1].signal(signal.SIGTERM)  # It is evicted.
    self.wait_agent(1, pods[1])
    self.release()
    self.wait_for(self.cluster.tend, "end")
    self.assertLen(self.cluster.pods, 4)
    self.check_state()

  def test_a_mistake_of_the_user_is_not_tried_again(self):
    self.write_program("bamboo", 'test "$1" = store || exit 2\n')
    self.cluster.start()
    self.addCleanup(self.cluster.close)
    codes = [pod.process.wait(300) for pod in self.cluster.pods]
    self.assertEqual(codes, [0, 2, 2, 2])
    _, agents = read()[0]["spec"]["replicatedJobs"]
    rules = agents["template"]["spec"]["podFailurePolicy"]["rules"]
    fails = {"containerName": "agent", "operator": "In", "values": [2]}
    self.assertIn({"action": "FailJob", "onExitCodes": fails}, rules)

  def test_commands(self):
    calls = self.folder / "calls"
    self.check_commands(f'echo "$@" >>{calls}\n')
    self.cluster.start()
    self.addCleanup(self.cluster.close)
    codes = [pod.process.wait(300) for pod in self.cluster.pods]
    logs = [p.read_text() for p in self.pods.glob("*/log")]
    self.assertEqual(codes, [0, 1, 1, 1], msg=logs)  # There is no summary.
    self.assertEqual(logs, [""] * 4)
    found = calls.read_text().splitlines()
    (store,) = (call for call in found if call.startswith("store "))
    temporary = self.pods / "bamboo-store-0-1" / "secret"
    self.assertEqual(
        store,
        f"store --workdir={self.workdir} --host=127.0.77.1 --port=2379 " f"--secret={temporary}",
    )
    temporary = self.pods / "bamboo-agents-2-4" / "secret"
    self.assertIn(
        f"agent --config={self.config} --workdir={self.workdir} "
        "--etcd=https://127.0.77.1:2379 --nodes=3 --name=bamboo-agents-2-4 "
        f"--zone=2 --host=127.0.77.4 --secret={temporary}",
        found,
    )

  @parameterized.parameters(
      # Exit status of the agent, the files from the oldest, success.
      (0, ("endpoint", "summary"), True),
      (0, ("summary", "endpoint"), False),  # Of an earlier run; a notice.
      (0, ("endpoint",), False),  # It left after a notice.
      # A run goes on after its end, and the store has not started yet.
      (1, ("endpoint", "summary"), False),
      (1, ("summary",), False),
      (137, ("endpoint", "summary"), False),
  )
  def test_only_the_end_of_the_run_is_success(self, status, names, want):
    for secs, name in enumerate(names, 1):
      (self.workdir / f"{name}.json").touch()
      os.utime(self.workdir / f"{name}.json", (secs, secs))
    script = kubelet.find_container(self.agents["template"])["args"][0]
    places = {"/tmp/": self.folder, "/shared/run/": self.workdir}
    places["/etc/bamboo/"] = self.secret.parent
    script = re.sub("|".join(places), lambda match: f"{places[match[0]]}/", script)
    self.write_program("bamboo", f"exit {status}\n")
    done = subprocess.run(
        ["bash", "-c", script], env=self.environ, capture_output=True, text=True, timeout=60
    )
    self.assertEqual(done.stderr, "")
    self.assertEqual(done.returncode == 0, want)


class FileTest(parameterized.TestCase):

  def test_parts_fit(self):
    job_set, service, claim, budget, policy = read()
    store, agents = job_set["spec"]["replicatedJobs"]
    pods = [j["template"]["spec"]["template"] for j in (store, agents)]
    labels = [pod["metadata"]["labels"] for pod in pods]
    self.assertEqual(service["spec"]["selector"], labels[0])
    self.assertEqual(budget["spec"]["selector"]["matchLabels"], labels[1])
    entries = kubelet.find_container(agents["template"])["env"]
    given = {entry["name"]: entry.get("value") for entry in entries}
    num_least = budget["spec"]["minAvailable"]
    self.assertEqual(num_least, int(given["NODES"]))
    num_pods = agents["replicas"] * agents["template"]["spec"]["parallelism"]
    self.assertLess(num_least, num_pods)
    (apps,) = policy["spec"]["podSelector"]["matchExpressions"]
    self.assertEqual(apps["values"], [label["app"] for label in labels])
    for pod in pods:
      volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
      (container,) = pod["spec"]["containers"]
      mounts = {m["name"] for m in container["volumeMounts"]}
      self.assertEqual(volumes.keys(), mounts)
      name = volumes["shared"]["persistentVolumeClaim"]["claimName"]
      self.assertEqual(name, claim["metadata"]["name"])
      self.assertIn(
          f"create secret generic {volumes['secret']['secret']['secretName']} ",
          (commands.ROOT / "docs/guides/kubernetes.md").read_text(),
      )
    self.assertIn("nvidia.com/gpu", container["resources"]["limits"])
    self.assertEqual(pods[1]["spec"]["restartPolicy"], "Never")
    tolerations = {(t["operator"], *t) for t in pods[1]["spec"]["tolerations"]}
    self.assertEqual(tolerations, {("Exists", "key", "operator")})

  @parameterized.parameters(0, 1)
  def test_pods_are_restricted(self, number):
    """As the Pod Security Standard "restricted" wants it, and more."""
    job = read()[0]["spec"]["replicatedJobs"][number]["template"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    self.assertContainsSubset(
        {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            # A cache of programs that the group can write is not used.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        pod["securityContext"],
    )
    self.assertEqual(
        container["securityContext"],
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    )
    kinds = {kind for v in pod["volumes"] for kind in v} - {"name"}
    self.assertEqual(kinds, {"persistentVolumeClaim", "secret"})
    self.assertFalse(pod["automountServiceAccountToken"])
    self.assertFalse({"hostNetwork", "hostPID", "hostIPC"} & pod.keys())
    self.assertRegex(container["image"], r":[\d.]+$")  # Not `latest`.
    memory = [container["resources"][k]["memory"] for k in ("requests", "limits")]
    self.assertEqual(memory[0], memory[1])
    (secret,) = (v["secret"] for v in pod["volumes"] if "secret" in v)
    self.assertEqual(secret["defaultMode"], 0o440)

  def test_the_store_ends_the_set(self):
    policy = read()[0]["spec"]["successPolicy"]
    self.assertEqual(policy, {"operator": "All", "targetReplicatedJobs": ["store"]})

  def test_fields_of_job_set(self):
    spec = read()[0]["spec"]
    self.assertContainsSubset(spec, _JOB_SET)
    for job in spec["replicatedJobs"]:
      self.assertEqual(set(job), _REPLICATED_JOB)
      self.assertRegex(job["name"], re.compile("^[a-z]{1,20}$"))
      # JobSet makes it `Indexed` otherwise, which needs `completions`.
      self.assertEqual(job["template"]["spec"]["completionMode"], "NonIndexed")

  def test_schemas(self):
    job_set, *others = read()
    jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", **job["template"]}
        for job in job_set["spec"]["replicatedJobs"]
    ]
    for document in (*jobs, *others):
      version = kubernetes_validate.latest_version()
      kubernetes_validate.validate(document, version, strict=True)
