"""What a user can get wrong about a cluster: one line, exit status 2."""

import json
import socket
import tempfile
import threading

from absl.testing import parameterized

from bamboo_jax.base import ports as ports_lib
from bamboo_jax.base import types
from bamboo_jax.cluster.store import fence as fence_lib
from bamboo_jax.cluster.store import registry as registry_lib
from tests.launch import commands


class FailingCase(commands.CommandCase):

  CHANGES = {"pipeline.num_pipelines": 1, "pipeline.num_stages": 2}

  def fail_training(self, command, *arguments):
    """Returns the line that a command ends with."""
    run = commands.fork(
        *("-m", f"launch.{command}"),
        f"--config={self.config}",
        f"--workdir={self.folder / 'run'}",
        *arguments,
    )
    self.assertEqual(run.returncode, 2, msg=run.stdout + run.stderr)
    self.assertEqual(run.stderr.count("\n"), 1, msg=run.stderr)
    self.assertStartsWith(run.stderr, "error: ")
    return run.stdout + run.stderr

  def fail_agent(self, *arguments):
    return self.fail_training("agent", "--name=n0", *arguments)

  def fail_cluster(self, *arguments):
    return self.fail_training("cluster", *arguments)


class ErrorsTest(FailingCase):

  def test_no_etcd(self):
    etcd = f"127.0.0.1:{ports_lib.free_port()}"
    for fail in (self.fail_agent, self.fail_cluster):
      self.assertIn(f"Cannot reach etcd at {etcd}", fail(f"--etcd={etcd}"))

  def test_workers_that_take_more_than_a_gpu(self):
    said = self.fail_cluster("--nodes=3", "--device_memory_fraction=0.4")
    self.assertIn("must be above 0 and at most 0.333", said)

  def test_nothing_starts_before_the_config_is_checked(self):
    said = self.fail_cluster(
        "--config.pipeline.executor=spmd", "--config.recovery.slow=deal"
    )
    self.assertStartsWith(
        said,
        "error: config.recovery.slow='deal' needs executor='rows': passes are "
        "not measured; take 'report'.",
    )
    self.assertFalse((self.folder / "run").exists())

  def test_a_workdir_of_another_run(self):
    self.finish(self.start("train", "--config.num_steps=1"))
    said = self.fail_cluster("--config.seed=7")
    self.assertRegex(
        said,
        "^error: The checkpoint of step 1 in .*/run/checkpoints is of another "
        "run: config.seed is 0 there, 7 here. Choose another workdir, or the "
        "former config",
    )
    self.assertFalse((self.folder / "run/logs").exists())

  def test_not_an_etcd(self):
    listener = socket.create_server(("127.0.0.1", 0))
    self.addCleanup(listener.close)

    def answer():
      connection, _ = listener.accept()
      with connection:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nwelcome")

    threading.Thread(target=answer, daemon=True).start()
    etcd = f"127.0.0.1:{listener.getsockname()[1]}"
    said = self.fail_agent(f"--etcd={etcd}")
    self.assertIn(f"Cannot reach etcd at {etcd}", said)

  @parameterized.parameters(
      ("missing", "No such file"), ("", "must be a file, not a folder")
  )
  def test_secret(self, name, message):
    said = self.fail_agent("--etcd=h:1", f"--secret={self.folder / name}")
    self.assertIn(message, said)

  def test_certificates(self):
    said = self.fail_agent("--etcd=h:1", f"--certificates={self.folder}")
    self.assertIn("must hold authority.pem, certificate.pem, key.pem", said)

  def test_certificates_do_not_sign_what_is_in_the_store(self):
    flags = "--etcd=h:1", "--host=0.0.0.0", f"--certificates={self.folder}"
    self.assertIn("Without a shared secret", self.fail_agent(*flags))

  @parameterized.parameters(
      ("--zones=", "--zones must be names"),
      ("--zones=a,,b", "--zones must be names such as a,b,c, got 'a,,b'"),
      ("--nodes=1", "need at least 2 nodes, got --nodes=1"),
      (
          "--config.cluster.heartbeat_secs=-1.0",
          "config.cluster.heartbeat_secs must be positive, got -1.0",
      ),
      ("--config.cluster.heartbeat=1", "did you mean 'heartbeat_secs'"),
      ("--etcd=nowhere", "is written host:port, "),
  )
  def test_arguments(self, arguments, message):
    self.assertIn(message, self.fail_cluster(*arguments.split()))


@commands.needs_etcd
class EtcdErrorsTest(FailingCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.server = commands.start_etcd(folder, cls.addClassCleanup)

  def setUp(self):
    super().setUp()
    self.run_name = self.id()
    self.etcd = self.server.client
    self.registry = registry_lib.Registry(self.etcd, self.run_name)
    self.to_etcd = f"--etcd={self.etcd.endpoints}", f"--run={self.run_name}"

  def test_what_differs_between_nodes(self):
    """A node that fails comes first; what it has said of itself is changed."""
    last = f"/bamboo/{self.run_name}/tickets/{types.MAX_NODES - 1}"
    self.etcd.put(last, json.dumps(["a", "life", ""]))
    said = self.fail_agent(*self.to_etcd)
    self.assertIn("can have no more; start another with --run", said)
    key = f"/bamboo/{self.run_name}/config"
    facts = self.etcd.get(key)
    for change, message in (
        (lambda f: f["config"].update(seed=7), "config.seed is 7 there and 0"),
        (lambda f: f.update(workdir="/else"), 'workdir is "/else" there and'),
        (lambda f: f["version"].update(jax="0.1"), 'jax is "0.1" there and "'),
    ):
      changed = json.loads(facts)
      change(changed)
      self.etcd.put(key, json.dumps(changed))
      self.assertIn(message, self.fail_agent(*self.to_etcd))

  def test_a_name_that_is_taken(self):
    self.registry.check_config({})
    fence = fence_lib.Fence(self.folder / "run")
    fence.create("stamp")
    said = self.fail_cluster(*self.to_etcd)
    self.assertIn(f"There is a run {self.run_name!r}", said)
    fence_lib.check(fence, "stamp", 0)  # Its members go on.

  def test_a_worker_that_dies_at_start(self):
    said = self.fail_cluster("--config.plan.memory_limit_gib=1e-6")
    self.assertIn("its worker ended with exit status 1", said)
    self.assertIn("InfeasibleError", said)

  def test_a_model_that_cannot_be(self):
    """No node starts."""
    said = self.fail_cluster("--config.model.options.num_block=2")
    self.assertIn("did you mean 'num_blocks'", said)
    self.assertNotIn("worker", said)
