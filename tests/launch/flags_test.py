"""Wrong flags and combinations of flags are refused, before anything is done."""

from absl.testing import parameterized

from tests import samples
from tests.launch import commands

_SIM = ("launch.simulate", "--config=configs/sim/compare.py:quick")
_CLUSTER = ("launch.cluster", "--config=tests/tiny.py")
_ABLATE = ("launch.ablate", "--config=tests/tiny.py", "--sweep=seed=1,2")
_TRACE = "third_party/published/parcae_p3.csv"
_NO_WORKDIR = ("launch.verify", "launch.trace", "launch.report", "launch.plan")
_CASES = (
    *(
        (f"{name}_url", (f"launch.{name}", *flags), f"is a URL, must be {must}.")
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
        (*_SIM, f"--trace={_TRACE}", "--config.study.trace.hours=3"),
        "--config.study.trace.hours has no effect with --trace",
    ),
    (
        "simulate_figures",
        (*_SIM, "--figure_format=pdf", "--noconfig.metrics.plots"),
        "--figure_format has no effect with config.metrics.plots=False",
    ),
    (
        "train_figures",
        ("launch.train", "--config=tests/tiny.py", "--figure_format=pdf"),
        "--figure_format has no effect with config.metrics.plots=False",
    ),
    ("cluster_kills", (*_CLUSTER, "--kinds=hang"), "--kinds has no effect without --random_kills"),
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
        (*_ABLATE, "--faults=a.csv", f"--sweep=trace={_TRACE}"),
        "Give one of faults and trace, not both",
    ),
    (
        "ablate_times",
        (*_ABLATE, "--dask=tcp://a:1", "--num_processes=2"),
        "--num_processes and --dask have no effect without --measure",
    ),
    (
        "shard",
        ("launch.verify", "--layouts=2", "--shard=1/2"),
        "--shard has no effect without --workdir",
    ),
    ("merge", (*_SIM, "--shard=1/2", "--merge=2"), "Give one of --shard and --merge, not both"),
    (
        "processes",
        (*_SIM, "--dask=tcp://a:1", "--num_processes=2"),
        "--num_processes has no effect with --dask",
    ),
    ("beside", (*_SIM[:1], "--beside=a", "--table=oobleck"), "one of --beside and --table, not"),
    (
        "beside_key",
        (*_SIM[:1], "--beside=a", "--config.seed=9"),
        "--config.seed has no effect with --beside",
    ),
    (
        "trace_figures",
        ("launch.trace", "show", _TRACE, "--figure_format=pdf"),
        "--figure_format has no effect without --out",
    ),
    (
        "trace_suffix",
        ("launch.trace", "show", _TRACE, "--out=a.gif"),
        "--out must end in .png or .pdf or .svg, got 'a.gif'",
    ),
    (
        "compare",
        ("launch.report", "a", "b", "--json", "--csv=runs"),
        "Give one of --json and --csv, not both",
    ),
    ("prices", ("launch.report", "--market=sport"), "did you mean 'spot'"),
    ("no_run", ("launch.report",), "Name the workdir of a run: bamboo report"),
    (
        "report",
        ("launch.report", "a", "--json", "--figure_format=pdf"),
        "one of --json and --figure_format, not both",
    ),
    (
        "layouts",
        ("launch.verify", "--layouts=3", "--sweep=seed=1,2"),
        "Give one of --sweep and --layouts, not both",
    ),
    ("kinds", ("launch.verify", "--kinds=pairs"), "did you mean 'pair'"),
    ("faults", ("launch.verify", "--faults=1,0/1,5"), "--faults, line 1: "),
    (
        "every",
        ("launch.verify", "--faults=1,0/1,5,kill", "--every=2", "--num_cases=3"),
        "--every and --num_cases have no effect with --faults",
    ),
    (
        "cases",
        ("launch.verify", "--kinds=pair", "--every=2"),
        "--every has no effect without --kinds=single",
    ),
    ("swept", ("launch.verify", "--sweep=pipeline.num_stages=2,x"), "config.pipeline.num_stages"),
    ("verify", ("launch.verify", "--shard=1/2"), "--shard has no effect without --workdir"),
    ("processes_of", ("launch.verify", "--processes"), "--processes has no effect without --lay"),
    ("least", ("launch.verify", "--every=0"), "--every must be at least 1, got 0"),
    ("plan_list", ("launch.plan", "--list", "--trace=a"), "Give one of --list and --trace, not"),
    ("compile", ("launch.plan", "--compile=h100", "--nodes=2"), "one of --compile and --nodes,"),
    ("machine", ("launch.plan", "--nodes=2"), "--nodes needs config.plan.machine"),
    ("port", (*_CLUSTER, "--metrics_port=70000"), "at least 1 and at most 65535, got 70000"),
    ("scale", (*_CLUSTER, "--trace=a", "--time_scale=0"), "--time_scale must be above 0, got 0.0"),
    (
        "two_faults",
        (*_CLUSTER, "--faults=a", "--random_kills=2"),
        "Give one of --faults and --random_kills, not both",
    ),
    ("stacks", ("launch.status", "--stacks", "--json"), "one of --json and --stacks, not both"),
    (
        "trace_command",
        ("launch.trace", "show", _TRACE, "--hours=3"),
        "--hours has no effect on show",
    ),
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
        (*_SIM, "--figure_format=png,gif"),
        "value of --figure_format 'gif'.* Allowed: pdf, png, svg",
    ),
)


class FlagsTest(parameterized.TestCase):

  # Each starts Python, a second.
  @parameterized.named_parameters(*samples.draw(_CASES, 8))
  def test_one_line(self, arguments, message):
    command, *rest = arguments
    if command not in _NO_WORKDIR and "://b/" not in f"{rest}" and "file:" not in f"{rest}":
      rest.append("--workdir=build/never_made")
    done = commands.fork("-m", command, *rest)
    self.assertEqual(done.returncode, 2, done.stderr)
    self.assertRegex(done.stderr, f"^error: .*{message}.*\n$")
    self.assertFalse((commands.ROOT / "build/never_made").exists())
