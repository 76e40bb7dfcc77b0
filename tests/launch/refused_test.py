"""Commands with wrong flags, or that are refused otherwise, leave all folders as they were."""

import fcntl
import re
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


_QUICK = _SIM[:2]
_TINY_CLUSTER = ("cluster", _TRAIN)
_ABLATE = ("ablate", _TRAIN, "--sweep=seed=1,2")
_PARCAE = "third_party/published/parcae_p3.csv"
_NO_WORKDIR = ("verify", "trace", "report", "plan")
_FLAGS = (
    *(
        (f"{name}_url", (name, *flags), f"is a URL, must be {must}.")
        for must, name, *flags in (
            ("s3://, gs://, az://, file:/// or a path", "train", "--workdir=http://b/run"),
            ("s3://, gs://, az://, file:/// or a path", "cluster", "--workdir=file://host/run"),
            ("s3://, gs://, az://, file:/// or a path", "status", "--workdir=http://b/run"),
            ("s3://, gs://, az://, file:/// or a path", "report", "http://b/run"),
            ("a path", "ablate", "--sweep=seed=1,2", "--workdir=s3://b/run"),
            ("a path", "tokenize", "--path=a", "--out=s3://b/run"),
        )
    ),
    (
        "simulate_trace",
        (*_QUICK, f"--trace={_PARCAE}", "--config.study.trace.hours=3"),
        "--config.study.trace.hours has no effect with --trace",
    ),
    (
        "simulate_figures",
        (*_QUICK, "--figure_format=pdf", "--noconfig.metrics.plots"),
        "--figure_format has no effect with config.metrics.plots=False",
    ),
    (
        "train_figures",
        ("train", _TRAIN, "--figure_format=pdf"),
        "--figure_format has no effect with config.metrics.plots=False",
    ),
    (
        "cluster_kills",
        (*_TINY_CLUSTER, "--kinds=hang"),
        "--kinds has no effect without --random_kills",
    ),
    (
        "ablate_scale",
        (*_ABLATE, "--time_scale=2", "--nodes=3"),
        "--time_scale and --nodes have no effect without --trace",
    ),
    (
        "ablate_faults",
        (*_ABLATE, "--faults=a.csv", "--trace=b.csv"),
        "Give one of --faults and --trace, not both",
    ),
    (
        "ablate_key",
        (*_ABLATE, "--config.seed=3"),
        "--config.seed has no effect beside a --sweep of it",
    ),
    (
        "ablate_policy",
        (*_ABLATE, "--sweep=recovery.policy=bamboo,oobleck", "--config.pipeline.layout=grid"),
        "--config.pipeline.layout has no effect with config.recovery.policy='bamboo', which",
    ),
    (
        "ablate_policies",
        (*_ABLATE, "--sweep=recovery.policy=own,oobleck", "--sweep=pipeline.layout=grid,depth"),
        "--sweep=pipeline.layout has no effect with config.recovery.policy='oobleck', which",
    ),
    (
        "ablate_file",
        (*_ABLATE, "--faults=a.csv", f"--sweep=trace={_PARCAE}"),
        "Give one of faults and trace, not both",
    ),
    (
        "ablate_times",
        (*_ABLATE, "--dask=tcp://a:1", "--num_processes=2"),
        "--num_processes and --dask have no effect without --measure",
    ),
    ("shard", ("verify", "--layouts=2", "--shard=1/2"), "--shard has no effect without --workdir"),
    ("merge", (*_QUICK, "--shard=1/2", "--merge=2"), "Give one of --shard and --merge, not both"),
    (
        "processes",
        (*_QUICK, "--dask=tcp://a:1", "--num_processes=2"),
        "--num_processes has no effect with --dask",
    ),
    ("beside", (*_QUICK[:1], "--beside=a", "--table=oobleck"), "one of --beside and --table, not"),
    (
        "beside_key",
        (*_QUICK[:1], "--beside=a", "--config.seed=9"),
        "--config.seed has no effect with --beside",
    ),
    (
        "trace_figures",
        ("trace", "show", _PARCAE, "--figure_format=pdf"),
        "--figure_format has no effect without --out",
    ),
    (
        "trace_suffix",
        ("trace", "show", _PARCAE, "--out=a.gif"),
        "--out must end in .png or .pdf or .svg, got 'a.gif'",
    ),
    (
        "compare",
        ("report", "a", "b", "--json", "--csv=runs"),
        "Give one of --json and --csv, not both",
    ),
    ("prices", ("report", "--market=sport"), "did you mean 'spot'"),
    ("no_run", ("report",), "Name the workdir of a run: bamboo report"),
    (
        "report",
        ("report", "a", "--json", "--figure_format=pdf"),
        "one of --json and --figure_format, not both",
    ),
    (
        "layouts",
        ("verify", "--layouts=3", "--sweep=seed=1,2"),
        "Give one of --sweep and --layouts, not both",
    ),
    ("kinds", ("verify", "--kinds=pairs"), "did you mean 'pair'"),
    ("faults", ("verify", "--faults=1,0/1,5"), "--faults, line 1: "),
    (
        "every",
        ("verify", "--faults=1,0/1,5,kill", "--every=2", "--num_cases=3"),
        "--every and --num_cases have no effect with --faults",
    ),
    (
        "cases",
        ("verify", "--kinds=pair", "--every=2"),
        "--every has no effect without --kinds=single",
    ),
    ("swept", ("verify", "--sweep=pipeline.num_stages=2,x"), "config.pipeline.num_stages"),
    ("verify", ("verify", "--shard=1/2"), "--shard has no effect without --workdir"),
    ("processes_of", ("verify", "--processes"), "--processes has no effect without --lay"),
    ("least", ("verify", "--every=0"), "--every must be at least 1, got 0"),
    ("plan_list", ("plan", "--list", "--trace=a"), "Give one of --list and --trace, not"),
    ("compile", ("plan", "--compile=h100", "--nodes=2"), "one of --compile and --nodes,"),
    ("machine", ("plan", "--nodes=2"), "--nodes needs config.plan.machine"),
    ("port", (*_TINY_CLUSTER, "--metrics_port=70000"), "at least 1 and at most 65535, got 70000"),
    (
        "scale",
        (*_TINY_CLUSTER, "--trace=a", "--time_scale=0"),
        "--time_scale must be above 0, got 0.0",
    ),
    (
        "two_faults",
        (*_TINY_CLUSTER, "--faults=a", "--random_kills=2"),
        "Give one of --faults and --random_kills, not both",
    ),
    ("stacks", ("status", "--stacks", "--json"), "one of --json and --stacks, not both"),
    ("trace_command", ("trace", "show", _PARCAE, "--hours=3"), "--hours has no effect on show"),
    ("measure", (*_ABLATE, "--measure=time"), "value of --measure 'time'; did you mean 'times'"),
    (
        "turns",
        (*_ABLATE, "--interleave=5", "--repeats=2"),
        "--repeats has no effect with --interleave",
    ),
    ("turns_of", (*_ABLATE, "--interleave=0"), "--interleave must be at least 1, got 0"),
    ("rival", (*_ABLATE, "--rival=a"), "--rival has no effect without --interleave"),
    (
        "formats",
        (*_QUICK, "--figure_format=png,gif"),
        "value of --figure_format 'gif'.* Allowed: pdf, png, svg",
    ),
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

  @parameterized.named_parameters(*samples.draw(_FLAGS, 8))
  def test_flags(self, arguments, message):
    command, *given = arguments
    if command not in _NO_WORKDIR and not re.search("://b/|file:", f"{given}"):
      given.append("--workdir={root}/new")
    self.assertRegex(self.refuse(command, *given), f"^error: .*{message}")

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
