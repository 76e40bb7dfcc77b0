"""Commands that are refused leave the folder of a run as it was."""

import fcntl
import socket

from absl.testing import parameterized

from tests import folders, samples
from tests.launch import commands

_TRAIN = "--config=tests/tiny.py"
_RUN = "--workdir={run}"
_SIM = ("simulate", "--config=configs/sim/compare.py:quick", _RUN)
# Files of a run, and of what else may be in such a folder.
_FILES = (
    *("checkpoints/note", "cluster.log", "config.py", "records/note"),
    *("failures.log", "layers.json", "logs/n0.log", "metrics.jsonl"),
    *("plain.log", "provenance.json", "random_kills.csv", "run/metrics.jsonl"),
    *("summary.json", "trace.csv"),
)
_MISTAKES = (
    (
        "cluster_kinds",
        ("cluster", _TRAIN, _RUN, "--random_kills=2", "--kinds=kil"),
        "did you mean 'kill'",
    ),
    (
        "cluster_model",
        ("cluster", _TRAIN, _RUN, "--config.model.options.num_block=2"),
        "did you mean 'num_blocks'",
    ),
    (
        "cluster_page",
        ("cluster", _TRAIN, _RUN, "--page_port={port}"),
        "--page_port: cannot listen at 127.0.0.1:.*: Address already in use",
    ),
    (
        "cluster_metrics",
        ("cluster", _TRAIN, _RUN, "--metrics_port={port}"),
        "--metrics_port: cannot listen at 127.0.0.1:.*: Address already",
    ),
    (
        "agent_host",
        ("agent", _TRAIN, _RUN, "--name=n0", "--host=8.8.8.8"),
        "a private network only, got '8.8.8.8'",
    ),
    ("store", ("__main__", "store", _RUN), "store is gone: a run needs only its --workdir"),
    ("simulate", (*_SIM, "--seeds=0"), "--seeds must be at least 1, got 0"),
    (
        "simulate_policies",
        (*_SIM[:2], "--workdir={root}/new", "--trace=ec2", "--policies=own,own"),
        "--policies=own,own must name a policy or several, each once",
    ),
    ("simulate_run", _SIM, "/run has a run that trained, whose report.html this would replace"),
    (
        "simulate_merge",
        (*_SIM[:2], "--workdir={root}", "--merge=2"),
        "Shards are not complete: 1/2",
    ),
    ("quickstart", ("quickstart", _RUN, "--faults=/no.csv"), "/no.csv: No such file"),
    ("validate", ("__main__", "validate", _RUN), "validate is gone: .*simulate --beside=A"),
    (
        "tokenize",
        ("tokenize", "--path={root}/records.jsonl", "--field=a", "--out={run}"),
        "Unknown field 'a'. Allowed: text",
    ),
    (
        "convert",
        ("convert", "--from=hf", "--model=gpt2", "--path=/no", "--out={run}"),
        "Cannot read /no/config.json",
    ),
    ("trace", ("trace", "show", "/no.csv", "--events={run}/trace.csv"), "/no.csv: No such file"),
    ("kill_nobody", ("kill", _RUN), "Name the --workdir of a run and its nodes"),
    (
        "kill_no_cluster",
        ("kill", "--workdir={run}/no", "n2"),
        "No cluster has run in .*/no: there is no .*/no/secret",
    ),
    ("kill_dead_cluster", ("kill", _RUN, "n2"), "There is no run of agents in .*/run/records"),
    ("status", ("status", _RUN), "There is no run of agents in .*/run/records"),
    ("status_no_workdir", ("status",), "Give the --workdir of a run"),
    ("report", ("report", "{run}/no"), "There is no run in .*/no: it has neither"),
    ("report_file", ("report", "file://{run}/no"), "There is no run in /.*/no: it has neither"),
)


class RefusedTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    run = self.folder / "run"
    for name in _FILES:
      (run / name).parent.mkdir(parents=True, exist_ok=True)
      (run / name).write_text("former")
    (run / "secret").touch(mode=0o600)
    (run / "secret").write_text("0123456789abcdef" * 4)
    (self.folder / "records.jsonl").write_text('{"text": "a"}\n')
    self.taken = self.enterContext(socket.create_server(("127.0.0.1", 0)))

  def refuse(self, command, *arguments):
    """Runs a command; returns the only line of its error."""
    port = self.taken.getsockname()[1]
    names = dict(run=self.folder / "run", root=self.folder, port=port)
    given = [argument.format(**names) for argument in arguments]
    before = folders.read_all(self.folder)
    done = commands.fork("-m", f"launch.{command}", *given)
    self.assertEqual(folders.read_all(self.folder), before)
    self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
    return done.stderr

  # Each starts Python, and some import what they run: up to 2 s.
  @parameterized.named_parameters(*samples.draw(_MISTAKES, 6))
  def test_a_mistake(self, arguments, message):
    self.assertRegex(self.refuse(*arguments), message)

  @parameterized.parameters(
      ("cluster", _TRAIN, "--random_kills=2"), ("train", _TRAIN), ("quickstart",)
  )
  def test_a_folder_in_use(self, command, *arguments):
    with open(self.folder / "run" / ".lock", "w") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      lock.write("process 7 on h")
      lock.flush()
      said = self.refuse(command, _RUN, *arguments)
    self.assertIn("/run is in use by process 7 on h. Name another", said)
