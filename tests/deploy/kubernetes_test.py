"""The file for Kubernetes: what its pods run, here as processes, and its fields."""

import pathlib
import re
import secrets

from absl.testing import parameterized
import kubernetes_validate
import yaml

from tests.deploy import kubelet, runs
from tests.launch import commands

_FILE = commands.ROOT / "docs" / "deploy" / "kubernetes.yaml"
# Of JobSet v1alpha2, the fields that the file may have.
_JOB_SET = {"successPolicy", "replicatedJobs", "ttlSecondsAfterFinished"}
_REPLICATED_JOB = {"name", "replicas", "template"}


def read():
  return list(yaml.safe_load_all(_FILE.read_text()))


class KubernetesTest(runs.DeployedCase):

  def run_pods(self):
    """Returns the exit codes of one pod of each zone, and what they wrote."""
    pods = pathlib.Path(self.folder, "pods")
    (pods / "bamboo-shared" / "run").mkdir(parents=True)
    secret = pods / "bamboo" / "secret"
    secret.parent.mkdir()
    secret.write_text(secrets.token_hex())
    secret.chmod(0o600)
    documents = read()
    (agents,) = documents[0]["spec"]["replicatedJobs"]
    given = {"CONFIG": str(self.config), "NODES": "3"}
    for entry in kubelet.find_container(agents["template"])["env"]:
      if entry["name"] in given:
        entry["value"] = given[entry["name"]]
    ended = kubelet.run_pods(documents, pods, self.environ)
    return [one.returncode for one in ended], [one.stdout + one.stderr for one in ended]

  def test_a_mistake_of_the_user_is_not_tried_again(self):
    self.write_program("bamboo", "exit 2\n")
    codes, _ = self.run_pods()
    self.assertEqual(codes, [2, 2, 2])
    (agents,) = read()[0]["spec"]["replicatedJobs"]
    rules = agents["template"]["spec"]["podFailurePolicy"]["rules"]
    fails = {"containerName": "agent", "operator": "In", "values": [2]}
    self.assertIn({"action": "FailJob", "onExitCodes": fails}, rules)

  def test_commands(self):
    calls = self.folder / "calls"
    self.check_commands(f'echo "$@" >>{calls}\n')
    codes, logs = self.run_pods()
    self.assertEqual(codes, [0, 0, 0], msg=logs)
    self.assertEqual(logs, [""] * 3)
    pods = self.folder / "pods"
    self.assertIn(
        f"agent --config={self.config} --workdir={pods}/bamboo-shared/run --nodes=3 "
        "--name=bamboo-agents-2-3 --zone=2 --host=127.0.77.3 "
        f"--secret={pods}/bamboo-agents-2-3/secret",
        calls.read_text().splitlines(),
    )


class FileTest(parameterized.TestCase):

  def test_parts_fit(self):
    job_set, claim, budget, policy = read()
    (agents,) = job_set["spec"]["replicatedJobs"]
    pod = agents["template"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    self.assertEqual(budget["spec"]["selector"]["matchLabels"], labels)
    self.assertEqual(policy["spec"]["podSelector"]["matchLabels"], labels)
    entries = kubelet.find_container(agents["template"])["env"]
    given = {entry["name"]: entry.get("value") for entry in entries}
    num_least = budget["spec"]["minAvailable"]
    self.assertEqual(num_least, int(given["NODES"]))
    num_pods = agents["replicas"] * agents["template"]["spec"]["parallelism"]
    self.assertLess(num_least, num_pods)
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    (container,) = pod["spec"]["containers"]
    mounts = {m["name"] for m in container["volumeMounts"]}
    self.assertEqual(volumes.keys(), mounts)
    name = volumes["shared"]["persistentVolumeClaim"]["claimName"]
    self.assertEqual(name, claim["metadata"]["name"])
    self.assertIn(
        f"create secret generic {volumes['secret']['secret']['secretName']} ",
        (commands.ROOT / "docs/guides/deploy.md").read_text(),
    )
    self.assertIn("nvidia.com/gpu", container["resources"]["limits"])
    self.assertEqual(pod["spec"]["restartPolicy"], "Never")
    tolerations = {(t["operator"], *t) for t in pod["spec"]["tolerations"]}
    self.assertEqual(tolerations, {("Exists", "key", "operator")})

  def test_pods_are_restricted(self):
    """As the Pod Security Standard "restricted" wants it, and more."""
    job = read()[0]["spec"]["replicatedJobs"][0]["template"]
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

  def test_the_first_complete_job_ends_the_set(self):
    policy = read()[0]["spec"]["successPolicy"]
    self.assertEqual(policy, {"operator": "Any", "targetReplicatedJobs": ["agents"]})

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
