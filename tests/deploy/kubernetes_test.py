"""The file for Kubernetes: what its pods run, here as processes, and its fields."""

import pathlib
import secrets

from absl.testing import absltest
import kubernetes_validate
import yaml

from tests.deploy import runs
from tests.launch import commands

_FILE = commands.ROOT / "docs" / "deploy" / "kubernetes.yaml"
_JOB_SET, *_OTHERS = yaml.safe_load_all(_FILE.read_text())
(_JOB,) = _JOB_SET["spec"]["replicatedJobs"]
_JOB_SPEC = _JOB["template"]["spec"]
_POD = _JOB_SPEC["template"]["spec"]
(_CONTAINER,) = _POD["containers"]


class PodTest(runs.DeployedCase):

  def run_pod(self):
    """Runs the container of the last pod as a process here; returns how it ended."""
    self.pod, (script,) = self.folder / "pod", _CONTAINER["args"]
    for mount in ("/tmp", *(m["mountPath"] for m in _CONTAINER["volumeMounts"])):
      pathlib.Path(f"{self.pod}{mount}").mkdir(parents=True)
      script = script.replace(f"{mount}/", f"{self.pod}{mount}/")
    (self.pod / "shared" / "run").mkdir()
    secret = self.pod / "etc" / "bamboo" / "secret"
    secret.write_text(secrets.token_hex())
    secret.chmod(0o600)
    fields = {
        "metadata.name": "bamboo-agents-2-3",
        "status.podIP": "127.0.77.3",
        "metadata.labels['jobset.sigs.k8s.io/job-index']": "2",
    }
    given = {
        entry["name"]: entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in _CONTAINER["env"]
    }
    given["CONFIG"] = str(self.config)
    return self.run_program(*_CONTAINER["command"], script, **given)

  def test_a_mistake_of_the_user_is_not_tried_again(self):
    self.write_program("bamboo", "exit 2\n")
    self.assertEqual(self.run_pod().returncode, 2)
    fails = {"containerName": _CONTAINER["name"], "operator": "In", "values": [2]}
    rules = _JOB_SPEC["podFailurePolicy"]["rules"]
    self.assertIn({"action": "FailJob", "onExitCodes": fails}, rules)

  def test_command(self):
    self.check_commands(f'echo "$@" >{self.folder}/call\n')
    ended = self.run_pod()
    self.assertEqual((ended.returncode, ended.stdout + ended.stderr), (0, ""))
    self.assertEqual(
        (self.folder / "call").read_text(),
        f"agent --config={self.config} --workdir={self.pod}/shared/run --nodes=8 "
        "--name=bamboo-agents-2-3 --zone=2 --host=127.0.77.3 "
        f"--secret={self.pod}/tmp/secret\n",
    )


class FileTest(absltest.TestCase):

  def test_parts_fit(self):
    claim, budget, policy = _OTHERS
    labels = _JOB_SPEC["template"]["metadata"]["labels"]
    self.assertEqual(budget["spec"]["selector"]["matchLabels"], labels)
    self.assertEqual(policy["spec"]["podSelector"]["matchLabels"], labels)
    given = {entry["name"]: entry.get("value") for entry in _CONTAINER["env"]}
    num_least = budget["spec"]["minAvailable"]
    self.assertEqual(num_least, int(given["NODES"]))
    self.assertLess(num_least, _JOB["replicas"] * _JOB_SPEC["parallelism"])
    volumes = {v["name"]: v for v in _POD["volumes"]}
    self.assertEqual(volumes.keys(), {m["name"] for m in _CONTAINER["volumeMounts"]})
    name = volumes["shared"]["persistentVolumeClaim"]["claimName"]
    self.assertEqual(name, claim["metadata"]["name"])
    secret = volumes["secret"]["secret"]
    self.assertEqual(secret["defaultMode"], 0o440)
    guide = (commands.ROOT / "docs/guides/deploy.md").read_text()
    self.assertIn(f"create secret generic {secret['secretName']} ", guide)
    # The first complete job ends the set. JobSet makes a job `Indexed` unless told
    # otherwise, which needs `completions`.
    want = {"operator": "Any", "targetReplicatedJobs": [_JOB["name"]]}
    self.assertEqual(_JOB_SET["spec"]["successPolicy"], want)
    self.assertEqual(_JOB_SPEC["completionMode"], "NonIndexed")

  def test_pods_are_restricted(self):
    """As the Pod Security Standard "restricted" wants it, and more."""
    users = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 1000)
    # A cache of programs that the group can write is not used.
    policies = {
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    self.assertEqual(_POD["securityContext"], {"runAsNonRoot": True} | users | policies)
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    self.assertEqual(_CONTAINER["securityContext"], own)
    self.assertFalse(_POD["automountServiceAccountToken"])
    self.assertFalse({"hostNetwork", "hostPID", "hostIPC"} & _POD.keys())
    self.assertRegex(_CONTAINER["image"], r":[\d.]+$")  # Not `latest`.
    requests, limits = (_CONTAINER["resources"][kind] for kind in ("requests", "limits"))
    self.assertEqual(requests["memory"], limits["memory"])

  def test_schemas(self):
    job = {"apiVersion": "batch/v1", "kind": "Job", **_JOB["template"]}
    version = kubernetes_validate.latest_version()
    for document in (job, *_OTHERS):
      kubernetes_validate.validate(document, version, strict=True)
