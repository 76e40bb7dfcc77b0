"""Commands with wrong flags, or that are refused otherwise, leave all folders as they were."""

import fcntl
import re
import socket

from absl.testing import parameterized

from tests import folders, samples, tables
from tests.launch import commands

_TRAIN = "--config=tests/tiny.py"
_NAMES = dict(
    tiny=_TRAIN,
    quick="--config=configs/sim/compare.py:quick",
    parcae="third_party/published/parcae_p3.csv",
)
_RUN = "--workdir={run}"
# Files of a run, and of what else may be in such a folder.
_FILES = (
    "checkpoints/note",
    "cluster.log",
    "config.py",
    "records/note",
    "failures.log",
    "layers.json",
    "logs/n0.log",
    "metrics.jsonl",
    "plain.log",
    "provenance.json",
    "random_kills.csv",
    "run/metrics.jsonl",
    "summary.json",
    "trace.csv",
)
# Commands, and what each is told.
_MISTAKES = r"""
cluster {tiny} --workdir={run} --random_kills=2 --kinds=kil
  did you mean 'kill'
cluster {tiny} --workdir={run} --zones=
  --zones must have a value, got ''
cluster {tiny} --workdir={run} --zones=us/a,/b
  A zone must be a name such as a, or region/zone such as us/a, got '/b'
cluster {tiny} --workdir={run} --zones=a,,b
  --zones must be names such as a,b,c, got 'a,,b'
cluster {tiny} --workdir={run} --nodes=1
  need at least 2 nodes, got --nodes=1
cluster {tiny} --workdir={run} --trace={root}/no.csv
  no.csv: No such file
cluster {tiny} --workdir={run} --trace={root}/good.csv --nodes=1
  need at least 2 nodes, got a trace that starts with 1
cluster {tiny} --workdir={run} --nodes=3 --device_memory_fraction=0.4
  must be above 0 and at most 0.333
cluster {tiny} --workdir={run} --config.pipeline.executor=spmd --config.recovery.slow=remove
  error: config.recovery.slow='remove' needs executor='rows': passes are not measured
cluster {tiny} --workdir={run} --config.model.options.num_block=2
  did you mean 'num_blocks'
cluster {tiny} --workdir={run} --page_port={port}
  --page_port: cannot listen at 127.0.0.1:.*: Address already in use
cluster {tiny} --workdir={run} --metrics_port={port}
  --metrics_port: cannot listen at 127.0.0.1:.*: Address already
agent {tiny} --workdir={run} --name=n0 --host=8.8.8.8
  a private network only, got '8.8.8.8'
agent {tiny} --workdir={run} --name=n0 --zone=us/
  or region/zone such as us/a, got 'us/'
agent {tiny} --workdir={run} --name=n0 --secret={root}
  must be a file, not a folder
agent {tiny} --workdir={run} --name=n0 --certificates={root}
  must hold authority.pem, certificate.pem, key.pem
agent {tiny} --workdir={run} --name=n0 --host=0.0.0.0 --certificates={root}
  is all addresses of this
train {tiny}
  The flag --workdir is needed
__main__ store --workdir={run}
  store is gone: a run needs only its --workdir
simulate {quick} --workdir={run} --seeds=0
  --seeds must be at least 1, got 0
simulate {quick} --workdir={root}/new --trace=ec2 --policies=own,own
  --policies=own,own must name each policy once
simulate {quick} --workdir={run}
  /run has a run that trained, whose report.html this would replace
simulate {quick} --workdir={root} --merge=2
  Shards are not complete: 1/2
simulate {quick} --workdir=
  --workdir must have a value, got ''
quickstart --workdir={run} --faults=/no.csv
  /no.csv: No such file
__main__ validate --workdir={run}
  validate is gone: .*simulate --beside=A
tokenize --path={root}/records.jsonl --field=a --out={run}
  Unknown field 'a'. Allowed: text
convert --from=hf --model=gpt2 --path=/no --out={run}
  Cannot read /no/config.json
convert --model=gpt2 --path=/no --out={run}
  Give --from or --to: hf or peft
simulate {quick} --workdir={root}/new --dask=tcp://127.0.0.1:1
  --dask=tcp://.*: no Dask scheduler
trace show /no.csv --events={run}/trace.csv
  /no.csv: No such file
trace
  Unknown command ''. Allowed: generate, resample, show
trace shwo
  Unknown command 'shwo'; did you mean 'show'
trace show {root}/bad.csv
  bad.csv, line 2: node 'b' is removed, but it
trace fit no.csv
  fit is gone: `bamboo trace resample FILE`
trace resample {root}/bad.csv
  The flag --out is needed
trace generate --out=x y
  Unexpected arguments: y
trace generate --out=no/x
  Cannot write 'no/x': its folder does not exist
trace generate --out={run}
  /run': it is a folder
trace generate --out=x --config.seed=1
  --config.seed has no effect on generate
trace resample {parcae} --out=x --hours=nan
  --hours must be above 0, got nan
report {run} --out=no/x.html
  Cannot write 'no/x.html'
kill --workdir={run}
  Name the --workdir of a run and its nodes
kill --workdir={run}/no n2
  No cluster has run in .*/no: there is no .*/no/secret
kill --workdir={run} n2
  There is no run of agents in .*/run/records
status --workdir={run}
  There is no run of agents in .*/run/records
status
  Give the --workdir of a run
report {run}/no
  There is no run in .*/no: it has neither
report file://{run}/no
  There is no run in /.*/no: it has neither
"""
_NO_WORKDIR = ("verify", "trace", "report", "plan")
_FLAGS = r"""
train {tiny} --print_config=maybe --workdir={run}
  --print_config must be true or false, got 'maybe'
train --stopat=3
  flag 'stopat'. Did you mean: stop_at
train {tiny} --stop_at=0
  --stop_at must be at least 1, got 0
train --stop_at=x
  --stop_at must be a whole number, got
train {tiny} more
  Unexpected arguments: more
train {tiny} --config.num_steps=x
  --config.num_steps must be a whole number
train --config=README.md
  Cannot read the config: SyntaxError
cluster {tiny} --time_scale=60
  --time_scale has no effect without --trace
train {tiny} --config.seed.=5 --workdir={run}
  config.seed has no keys
train --workdir=http://b/run
  is a URL, must be s3://, gs://, az://, file:/// or a path.
train --workdir=s3:/b/run
  is a URL, must be s3://, gs://, az://, file:/// or a path.
cluster --workdir=file://host/run
  is a URL, must be s3://, gs://, az://, file:/// or a path.
status --workdir=http://b/run
  is a URL, must be s3://, gs://, az://, file:/// or a path.
report http://b/run
  is a URL, must be s3://, gs://, az://, file:/// or a path.
ablate --sweep=seed=1,2 --workdir=s3://b/run
  is a URL, must be a path.
tokenize --path=a --out=s3://b/run
  is a URL, must be a path.
simulate {quick} --trace={parcae} --config.study.trace.hours=3
  --config.study.trace.hours has no effect with --trace
simulate {quick} --figure_format=pdf --noconfig.metrics.plots
  --figure_format has no effect with config.metrics.plots=False
train {tiny} --figure_format=pdf
  --figure_format has no effect with config.metrics.plots=False
cluster {tiny} --kinds=hang
  --kinds has no effect without --random_kills
ablate {tiny} --sweep=seed=1,2 --time_scale=2 --nodes=3
  --time_scale and --nodes have no effect without --trace
ablate {tiny} --sweep=seed=1,2 --faults=a.csv --trace=b.csv
  Give one of --faults and --trace, not both
ablate {tiny} --sweep=seed=1,2 --config.seed=3
  --config.seed has no effect beside a --sweep of it
ablate {tiny} --sweep=recovery.policy=bamboo,oobleck --config.pipeline.layout=grid
  --config.pipeline.layout has no effect with config.recovery.policy='bamboo', which
ablate {tiny} --sweep=recovery.policy=own,oobleck --sweep=pipeline.layout=grid,depth
  --sweep=pipeline.layout has no effect with config.recovery.policy='oobleck', which
ablate {tiny} --sweep=seed=1,2 --faults=a.csv --sweep=trace={parcae}
  Give one of faults and trace, not both
ablate {tiny} --sweep=seed=1,2 --dask=tcp://a:1 --num_processes=2
  --num_processes and --dask have no effect without --measure
verify --layouts=2 --shard=1/2
  --shard has no effect without --workdir
simulate {quick} --trace=
  --trace must have a value, got ''
simulate {quick} --sweep=seed=1,2 --sweep=study.trace.hours=1,2
  Give one --sweep, got those of seed and study.trace.hours
simulate {quick} --sweep=study.table.column=a,b
  --sweep=study.table.column has no effect without config.study.table.file
simulate {quick} --shard=1/2 --merge=2
  Give one of --shard and --merge, not both
simulate {quick} --dask=tcp://a:1 --num_processes=2
  --num_processes has no effect with --dask
simulate --beside=a --table=oobleck
  one of --beside and --table, not
simulate --beside=a --config.seed=9
  --config.seed has no effect with --beside
trace show {parcae} --figure_format=pdf
  --figure_format has no effect without --out
trace show {parcae} --out=a.gif
  --out must end in .png or .pdf or .svg, got 'a.gif'
report a b --json --csv=runs
  Give one of --json and --csv, not both
report --market=sport
  did you mean 'spot'
report
  Name the workdir of a run: bamboo report
report a --same
  --same compares the ends of several runs, got a
report a --figure_format=pdf,png,pdf
  --figure_format must have each value once, got pdf,png,pdf
report a --json --figure_format=pdf
  one of --json and --figure_format, not both
verify --layouts=3 --sweep=seed=1,2
  Give one of --sweep and --layouts, not both
verify --kinds=pairs
  did you mean 'pair'
verify --faults=1,0/1,5
  --faults, line 1:
verify --faults=1,0/1,5,kill --every=2 --num_cases=3
  --every and --num_cases have no effect with --faults
verify --kinds=pair --every=2
  --every has no effect without --kinds=single
verify --sweep=pipeline.num_stages=2,x
  config.pipeline.num_stages
verify --processes
  --processes has no effect without --lay
verify --every=0
  --every must be at least 1, got 0
plan --list --trace=a
  Give one of --list and --trace, not
plan --compile=h100 --nodes=2
  one of --compile and --nodes,
plan --config.recovery.policy=oobleck --config.pipeline.layout=grid
  --config.pipeline.layout has no effect with config.recovery.policy='oobleck', which sets it
plan --nodes=2
  --nodes needs config.plan.machine
cluster {tiny} --metrics_port=70000
  at least 1 and at most 65535, got 70000
cluster {tiny} --trace=a --time_scale=0
  --time_scale must be above 0, got 0.0
cluster {tiny} --faults=a --random_kills=2
  Give one of --faults and --random_kills, not both
status --stacks --json
  one of --json and --stacks, not both
trace show {parcae} --hours=3
  --hours has no effect on show
ablate {tiny} --sweep=faults={parcae},missing.csv
  missing.csv: No such file or directory
ablate {tiny} --sweep=seed=1,2 --measure=time
  value of --measure 'time'; did you mean 'times'
ablate {tiny} --sweep=seed=1,2 --interleave=5 --repeats=2
  --repeats has no effect with --interleave
ablate {tiny} --sweep=seed=1,2 --interleave=0
  --interleave must be at least 1, got 0
ablate {tiny} --sweep=seed=1,2 --rival=a
  --rival has no effect without --interleave
simulate {quick} --figure_format=png,gif
  value of --figure_format 'gif'.* Allowed: pdf, png, svg
"""


class RefusedTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    run = self.folder / "run"
    for name in _FILES:
      (run / name).parent.mkdir(parents=True, exist_ok=True)
      (run / name).write_text("former")
    (run / "secret").touch(mode=0o600)
    (run / "secret").write_text("0123456789abcdef" * 4)
    (self.folder / "bad.csv").write_text("0,add,a\n5,remove,b\n")
    (self.folder / "good.csv").write_text("0,add,a/1\n1000,add,b/1\n")
    (self.folder / "records.jsonl").write_text('{"text": "a"}\n')
    self.taken = self.enterContext(socket.create_server(("127.0.0.1", 0)))

  def refuse(self, command, *arguments):
    """Runs a command; returns the only line of its error."""
    port = self.taken.getsockname()[1]
    names = _NAMES | dict(run=self.folder / "run", root=self.folder, port=port)
    given = [argument.format(**names) for argument in arguments]
    before = folders.read_all(self.folder)
    done = commands.fork("-m", f"launch.{command}", *given)
    self.assertEqual(folders.read_all(self.folder), before)
    self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
    return done.stderr

  # Each starts Python, and some import what they run: up to 2 s; for Dask 10 s.
  @parameterized.parameters(*samples.draw(tables.read(_MISTAKES), 8))
  def test_a_mistake(self, command, message):
    self.assertRegex(self.refuse(*command.split()), message)

  @parameterized.parameters(*samples.draw(tables.read(_FLAGS), 9))
  def test_flags(self, command, message):
    if command.split()[0] not in _NO_WORKDIR and not re.search(":/+b/|file:", command):
      command += " --workdir={root}/new"
    self.assertRegex(self.refuse(*command.split()), f"^error: .*{message}")

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
