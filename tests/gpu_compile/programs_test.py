"""Every program of some configs compiles for GPUs and does what it should.

`launch/test --gpu_compile` runs this: it takes minutes, and a plugin of JAX.
"""

import glob
import importlib
import re
import tempfile

from absl.testing import parameterized
import pytest

from bamboo_jax.gpu import private, report
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.training.setup import accept, build, show
from tests.gpu_compile import hlo, memory

if _REASON := private.find_reason():
  pytest.skip(f"{_REASON}.", allow_module_level=True)
_DUMP = tempfile.mkdtemp()
private.prepare(f"{report.find_flags(deterministic=True)} --xla_dump_to={_DUMP}")

_PASSES = ("forward", "backward")
_ALL = (*_PASSES, "redundant", "update", "zeros", "cast")
_MIN_TILE = 64
# Loops of a segment without a known trip count, with one pass of each kind in a
# tick. The number may only fall.
_MAX_LOOPS = 7
# Memory by the planner beside that of compiled programs.
_TOLERANCE = 0.10
_LONG = dict(dtype="bfloat16", dropout_rate=0.0, vocab_size=50257)
_PADDED = _LONG | dict(vocab_size=50304)


def make_config(name, *, model=None, mesh=(1, 1), mode="none", **pipeline):
  """Returns a packaged config, "module:variant", with some options."""
  module, _, variant = name.partition(":")
  config = importlib.import_module(f"bamboo_jax.configs.{module}")
  config = config.get_config(variant)
  config.model.options.update(model or {})
  config.pipeline.update(pipeline)
  config.redundancy.mode = mode
  config.node.mesh.data, config.node.mesh.tensor = mesh
  config.pipeline.microbatch_size = 4
  config.plan.memory_limit_gib = None
  return accept.accept(config)


def compile_units(config, gpu, names):
  """Returns the task, the plan, and the programs by kind of unit."""
  task, plan = (build.make_task(config, needs_data=False), show.make_plan(config).plan)
  by_kind = {}
  for unit, program in report.compile_units(config, task, plan, gpu, names=names):
    by_kind.setdefault(unit.kind, {})[program.name] = program
  return task, plan, by_kind


def find_loops(text):
  """Reads loops and branches off a sequence of thunks.

  Returns the kinds of those outside of CUDA graphs, and of each loop that
  stands in a graph, and in no other loop of it, its number and that of the last
  thunk that it waits for.
  """
  outside, inside, graph = [], [], None
  for line in text.splitlines():
    found = re.match(r"( *)(\d+): k(\w+) +\[(?:prev=(\d+))?", line)
    if not found:
      continue
    depth, kind = len(found[1]), found[3]
    if graph is not None and depth <= graph:
      graph = None
    if kind == "CommandBuffer":
      graph = depth
    elif kind in ("While", "Conditional"):
      if graph is None:
        outside.append(kind)
      elif depth == graph + 4 and kind == "While":
        inside.append((int(found[2]), int(found[4] or -1)))
  return outside, inside


class ProgramsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("gpt2_small_a100", "gpt2:small", "a100", dict(model=_LONG)),
      ("llama_1b", "llama:3.2_1b", "h100", dict(model=dict(vocab_size=128256))),
      ("llama_8b", "llama:3_8b", "h100", dict(model=dict(vocab_size=128256))),
      ("qwen", "qwen:3_0.6b", "a100", dict(model=dict(vocab_size=151936))),
      ("bert_large", "bert:large", "a100", dict(model=dict(dtype="bfloat16"))),
      ("resnet_152", "resnet:152", "h100", {}),
      ("gnmt", "gnmt:16", "a100", dict(model=dict(vocab_size=32000))),
      ("mesh_2x2", "gpt2:medium", "h100", dict(model=_PADDED, mesh=(2, 2))),
      ("mesh_2x4", "llama:3_8b", "h100", dict(model=dict(vocab_size=128256), mesh=(2, 4))),
  )
  def test_passes(self, name, gpu, options):
    config = make_config(name, **options)
    gpu = private.find(gpu)
    before = set(glob.glob(f"{_DUMP}/*"))
    task, _, by_kind = compile_units(config, gpu, _PASSES)
    self._check_passes(config, gpu, task, by_kind)
    self._check_graphs(set(glob.glob(f"{_DUMP}/*")) - before)

  def _check_passes(self, config, gpu, task, by_kind):
    head = by_kind[task.whole.units[-1].kind]["forward"]
    for found in by_kind.values():
      for program in found.values():
        with self.subTest(f"{program.owner} {program.name}"):
          self._check(program, gpu)
    vocab_size = config.model.options.get("vocab_size", 256)
    if "sequence_length" in config.model.options and vocab_size > 10_000:
      shape = task.whole.batch["inputs"].shape
      logits = 4 * shape[0] * shape[1] * vocab_size
      # Besides the logits, what is kept of them; often in 16 bits.
      dtype = config.model.options.get("dtype", "float32")
      most = 1 + (dtype == "float32")
      self.assertLessEqual(hlo.parse(head.compiled.as_text()).count_large(logits), most)

  def _check(self, program, gpu):
    found = hlo.parse(program.compiled.as_text())
    self.assertEqual([fault for *_, faults in found.copies() for fault in faults], [])
    self.assertLess(program.device_bytes, gpu.memory_bytes)
    self.assertGreaterEqual(found.smallest_tile or _MIN_TILE, _MIN_TILE)
    self.assertEqual(found.num_slow_products, 0)
    return found

  def _check_graphs(self, files):
    """Kernels of programs are started as CUDA graphs."""
    sequences = [f for f in files if "thunk_sequence_after" in f]
    self.assertNotEmpty(sequences)
    for path in sequences:
      with open(path) as file:
        text = file.read()
      if text.count("kCustomKernel") > 4:
        self.assertIn("kCommandBuffer", text, msg=path)

  @parameterized.parameters("gpt2:small", "gpt2:medium")
  def test_all_programs_of_a_run(self, name):
    config = make_config(name, model=_LONG, mode="bubble", num_stages=4)
    gpu = private.find("h100")
    task, plan, by_kind = compile_units(config, gpu, _ALL)
    self._check_passes(config, gpu, task, by_kind)
    self._check_redundant(by_kind)
    self.assertNotIn("redundant", by_kind[task.whole.units[-1].kind])  # Nothing needs it.
    stages = task.whole.cut(plan.partition.bounds)
    for stage in memory.of_rows(stages, plan, by_kind):
      self.assertLess(abs(stage.compiled / stage.planned - 1), _TOLERANCE)
    for unit in task.whole.units:
      found, state = by_kind[unit.kind], unit.state
      sums = spec_lib.nbytes(unit.accumulator)
      self.assertGreaterEqual(found["backward"].num_bytes("alias"), sums)
      kept = spec_lib.nbytes([(layer.params, layer.slots) for layer in state.values()])
      self.assertGreaterEqual(found["update"].num_bytes("alias"), kept)

  def test_memory_with_frozen_weights(self):
    model = dict(vocab_size=128256, lora_rank=8)
    config = make_config("llama:3.2_1b", model=model, num_stages=4)
    names = [name for name in _ALL if name != "redundant"]
    task, plan, by_kind = compile_units(config, private.find("h100"), names)
    stages = task.whole.cut(plan.partition.bounds)
    found = memory.of_rows(stages, plan, by_kind)
    for stage, planned in zip(found, plan.memory, strict=True):
      # What lies on the device while no program runs.
      compiled = stage.compiled - stage.temp
      expected = stage.planned - planned.working_bytes
      self.assertLess(abs(compiled / expected - 1), _TOLERANCE)

  def _check_redundant(self, by_kind):
    """Redundant passes leave all that forward passes keep on the host."""
    for found in by_kind.values():
      if "redundant" not in found:
        continue
      program, forward = found["redundant"], found["forward"]
      on_host = program.num_bytes("host_argument", "host_output")
      self.assertAlmostEqual(on_host, forward.num_bytes("output"), delta=2**20)

  @parameterized.parameters(
      ("gpt2:small", 4, 8, "full", 9.2),
      ("gpt2:medium", 8, 16, "full", 17.8),
      ("gpt2:medium", 8, 16, "inputs", 7.6),
  )
  def test_spmd(self, name, num_stages, num_microbatches, remat, most_gib):
    config = make_config(
        name,
        model=_PADDED,
        mode="bubble",
        executor="spmd",
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        remat=remat,
    )
    gpu = private.find("h100")
    task, plan = (build.make_task(config, needs_data=False), show.make_plan(config).plan)
    before, found = set(glob.glob(f"{_DUMP}/*")), []
    for program in report.compile_segments(config, task, plan, gpu):
      after = set(glob.glob(f"{_DUMP}/*"))
      with self.subTest(program.name):
        does = self._check(program, gpu)
        self.assertLessEqual(does.num_unknown_loops, _MAX_LOOPS)
        self.assertTrue(any(is_hidden for _, _, is_hidden, _ in does.copies()))
        self._check_tick(program, after - before)
      before, found = after, [*found, program]
    for stage in memory.of_segments(plan, found):
      self.assertLess(abs(stage.compiled / stage.planned - 1), _TOLERANCE)
      self.assertLess(stage.compiled, most_gib * 2**30)  # It may only fall.

  def _check_tick(self, program, files):
    """All passes of a tick are one CUDA graph; the host reads no condition."""
    (path,) = [f for f in files if "thunk_sequence_after" in f]
    with open(path) as file:
      outside, inside = find_loops(file.read())
    self.assertEqual(outside, ["While"])  # Over the ticks.
    if program.name == "segment":
      # Copies to the host run beside the backward pass, whichever is first.
      (forward, _), (first, _), (second, waits) = inside
      self.assertLess(forward, first)
      self.assertLess(waits, first)
      self.assertLess(first, second)


class ReportTest(parameterized.TestCase):

  def test_segments(self):
    config = make_config("gpt2:tiny", executor="spmd", num_stages=2)
    text = report.make_report(config, "l4")
    self.assertRegex(text, r"pipeline +segment +\d+")

  def test_has_all_programs(self):
    config = make_config("gpt2:tiny").changed({"evaluate.every_steps": 0})
    text = report.make_report(config, "l4")
    self.assertRegex(text, r"head +backward +(\d+ +){4}[\d.]+ +[\d.]*[1-9]")
