"""The checks of a GPU, in order of value, and their tests without one."""

import json
import re
import statistics

import jax
import pytest

from tests.gpu import child, fill_table, memory, passes, settings as settings_lib

_ORDERED = "--xla_gpu_enable_scatter_determinism_expander=true"
_STEPS = {  # What sameness of bits costs.
    "any order": "",
    "no Triton": "--xla_gpu_enable_triton_gemm=false",
    "same bits": "--xla_gpu_deterministic_ops=true",
    "same bits, no Triton": settings_lib.SAME_BITS,
}
_NEEDED = ("training", "cudnn")  # What we rely on, see `make_modes`.


def make_modes(folder):
  """Returns the XLA flags of the first and the second process, by mode.

  The shadow of a stage may apply the same update as its owner only if both get
  the same bits, in two processes. On a GPU two things stand against that: sums by
  atomic operations, and autotuning, which picks kernels by measured time.

    default        neither is prevented
    training       the flags that training sets
    cudnn          the same, with cuDNN's kernel of attention
    autotune_dir   scattered sums in order; choices kept in a folder
    autotune_file  scattered sums in order; choices kept in one file
  """
  directory, file = folder / "kernels", folder / "autotune.textproto"
  directory.mkdir()
  in_dir = f"{_ORDERED} --xla_gpu_per_fusion_autotune_cache_dir={directory}"
  return {
      "default": ("", ""),
      **dict.fromkeys(_NEEDED, (settings_lib.SAME_BITS,) * 2),
      "autotune_dir": (in_dir, in_dir),
      "autotune_file": (
          f"{_ORDERED} --xla_gpu_dump_autotune_results_to={file}",
          f"{_ORDERED} --xla_gpu_load_autotune_results_from={file}",
      ),
  }


@pytest.mark.gpu
def test_device(run_alone, report):
  found = run_alone(memory.check_device)
  if found.problems:
    pytest.exit(found.problems[0], returncode=1)
  report(found)


@pytest.mark.gpu
def test_kills(settings, report, train):
  """A cluster of workers that share one device, some of which are killed."""
  num_kills, num_workers = settings.num_kills, settings.num_workers
  options = (
      "--config.model.options.num_blocks=4",
      "--config.pipeline.num_pipelines=2",
      "--config.pipeline.num_microbatches=4",
      f"--config.num_steps={4 * num_kills + 2}",
      f"--config.pipeline.num_stages={num_workers // 2}",
  )
  kills = (f"--random_kills={num_kills}", f"--device_memory_fraction={0.8 / num_workers}")
  whole = train("whole", *options)
  killed = train("killed", *options, *kills, module="launch.cluster")
  secs = [recovery["kill_to_first_instruction_secs"] for recovery in killed["recoveries"]]
  same = killed["state_sha256"] == whole["state_sha256"]
  problems = ["other bits than without kills"] * (not same)
  if len(secs) != num_kills:
    problems.append(f"{len(secs)} recoveries after {num_kills} kills")
  times = {"median_secs": statistics.median(secs), "most_secs": max(secs)} if secs else {}
  report(child.Found({"count": len(secs), "same_bits": same, **times}, problems))


@pytest.mark.gpu
def test_layouts(report, note, train):
  """Three layouts of the same batch give the same bits."""
  hashes = {}
  for pipelines, stages in ((1, 4), (2, 2), (4, 1)):  # Each has 4 shares of 2 microbatches.
    name = f"{pipelines}x{stages}"
    hashes[name] = train(
        name,
        "--config.num_steps=4",
        "--config.model.options.num_blocks=4",
        f"--config.pipeline.num_pipelines={pipelines}",
        f"--config.pipeline.num_stages={stages}",
        f"--config.pipeline.num_microbatches={8 // pipelines}",
        "--config.pipeline.num_shares=4",
        "--config.redundancy.mode=none",
    )["state_sha256"]
    note(**{f"{name}.state_sha256": hashes[name]})
  same = len({*hashes.values()}) == 1
  problems = [] if same else [f"layouts give other bits: {hashes}"]
  report(child.Found({"same_bits": same}, problems))


@pytest.mark.gpu
def test_step(run_alone, report):
  found = {m: run_alone(passes.check_step, xla_flags=f, label=m) for m, f in _STEPS.items()}
  report(child.Found(problems=[f"{m}: {p}" for m, f in found.items() for p in f.problems]))


@pytest.mark.gpu
def test_speed(run_alone, report, settings):
  problems = []
  for variant in settings.speed_variants.split(","):
    found = run_alone(passes.check_speed, label=variant, variant=variant, dropout_rate=0.0)
    problems += [f"{variant}: {problem}" for problem in found.problems]
  report(child.Found(problems=problems))


@pytest.mark.gpu
def test_determinism(run_alone, report, note, tmp_path):
  """Which XLA flags make the same program give the same bits, and their price."""
  problems = []
  for mode, flags in make_modes(tmp_path).items():
    changes = {"dropout_rate": 0.0} if mode == "cudnn" else {}
    found = [run_alone(passes.check_bits, xla_flags=f, **changes) for f in flags]
    if wrong := [p for f in found for p in f.problems]:
      problems.append(f"{mode}: {wrong[0]}")
      continue
    first, second = (f.values.pop("digests") for f in found)
    same = {
        "same_in_process": len({*first}) == len({*second}) == 1,
        "same_across": first[0] == second[0],
    }
    note(**{mode: same | found[1].values})
    if mode in _NEEDED and not all(same.values()):
      problems.append(f"{mode} does not give the same bits")
  report(child.Found(problems=problems))


@pytest.mark.gpu
def test_offload(run_alone, report):
  report(run_alone(memory.check_offload))


@pytest.mark.gpu
def test_spmd(report, run_alone, train, settings):
  """A step as one program over several GPUs has the bits of rows."""
  devices = run_alone(memory.check_device).values.get("num_devices", 0)
  if devices < 2 and settings.needs_gpu:
    report(child.Found({"devices": devices, "skipped": "needs at least 2 GPUs"}))
    return
  options = (
      "--config.num_steps=4",
      "--config.model.options.num_blocks=2",
      "--config.pipeline.num_pipelines=1",
      "--config.pipeline.num_stages=2",
  )
  rows, spmd = (
      train(executor, *options, f"--config.pipeline.executor={executor}")["state_sha256"]
      for executor in ("rows", "spmd")
  )
  problems = [] if rows == spmd else ["other bits than rows"]
  report(child.Found({"same_bits": rows == spmd}, problems))


@pytest.mark.gpu
def test_memory(run_alone, report):
  report(run_alone(memory.check_memory))


@pytest.mark.gpu
def test_pipeline(run_alone, report):
  report(run_alone(passes.check_pipeline))


def test_flags_exist(tmp_path):  # JAX reads them when a process starts it.
  flags = {f for pair in make_modes(tmp_path).values() for line in pair for f in line.split()}
  code = "import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()"
  problem = child.run_python(("-c", code), xla_flags=" ".join(sorted(flags)), timeout_secs=60.0)
  assert problem is None


def test_offload_on_this_device():
  found = memory.check_offload(settings_lib.SMOKE)
  assert found.problems == []
  assert len(found.values) == 4


@pytest.mark.parametrize(
    ("moment", "as_in", "problem"),
    [(None, None, None), ("held", "before", "shows as 0"), ("freed", "held", "still in use")],
)
def test_memory_of_live_arrays(moment, as_in, problem):
  def read_stats():
    return {"bytes_in_use": sum(a.nbytes for a in jax.live_arrays())}

  size = 1 << 20
  moments = memory.watch(jax.devices()[0], read_stats, num_bytes=size)
  if moment:
    moments[moment] = moments[as_in]
  found = memory.find_problems(**moments, num_bytes=size)
  assert [problem in p for p in found] == [True] * bool(problem), found


def test_fill_table():
  line = lambda part, figure, value: json.dumps({"part": part, "figure": figure, "value": value})
  page = "text\n| `kills.count` | 50 |  |\n| `step.a b.ms` | - |  |\n| x |\n"
  lines = [line("kills", "count", 50), line("step", "a b.ms", 12345.6)]
  filled = fill_table.fill(page, lines)
  assert filled == ("text\n| `kills.count` | 50 | 50 |\n| `step.a b.ms` | - | 12,346 |\n| x |\n")
  assert "| 50 | 49 |" in fill_table.fill(filled, [line("kills", "count", 49)])
  shown = [fill_table.show(v) for v in (True, False, None, 0.25, 12, "a")]
  assert shown == ["yes", "no", "-", "0.25", "12", "a"]


def test_rows_of_the_page_are_parts():
  page = fill_table.PAGE.read_text()
  figures = re.findall(r"^\| `([a-z]+)\.[^`]+` \|", page, re.MULTILINE)
  assert {*figures} == settings_lib.LIMITS_SECS.keys() - {"device"}
