"""Predicted steps beside published ones; the shares of rooflines follow."""

import csv
import dataclasses
import functools
import math
import pathlib

from absl.testing import parameterized
import optax

from bamboo_jax.accounting import machines
from bamboo_jax.models import zoo
from bamboo_jax.runtime.profile import products, profiler, roofline
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from tests import profiles, samples

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_FILE = _ROOT / "third_party" / "published" / "gpu_training_runs.csv"
# The aim: within this of the published time, for these models.
_MOST_ERROR = 0.25
_AIMED = ("llm.c 124M", "nanoGPT 124M", "llm-foundry 125m", "torchtitan 8B")


def read_runs():
  lines = [l for l in _FILE.read_text().splitlines() if l[:1] != "#"]
  return {run["run"]: run for run in csv.DictReader(lines)}


def make_spec(run):
  options = dict(pair.split("=") for pair in run["options"].split())
  plain = {k: int(v) if v.isdigit() else v for k, v in options.items()}
  length = int(run["sequence_length"])
  if run["model"] == "gpt2":
    plain["dropout_rate"] = 0.0
  if run["fused_attention"] == "0":
    plain["attention"] = "xla"
  model = zoo.make_model(run["model"], dtype="bfloat16", sequence_length=length, **plain)
  batch = model.batch_shapes(int(run["microbatch_size_per_gpu"]))
  return spec_lib.StageSpec(
      model, 0, len(model.layers), batch, optax.adamw(1e-4), remat=run["remat"]
  )


_RUNS = read_runs()


@functools.cache
def find_share(name):
  """Returns the part of the roofline that a run has reached: of its steps of one microbatch."""
  run = _RUNS[name]
  spec = make_spec(run)
  machine = machines.find_machine(run["gpu"])
  if run["memory_gb_per_sec"]:
    rate = 1e9 * float(run["memory_gb_per_sec"])
    machine = dataclasses.replace(machine, memory_bytes_per_sec=rate)
  profile = profiler.estimate(spec, roofline.Roofline.of(spec, machine), fingerprint={})
  passes = sum(l.forward_ms + l.backward_ms for l in profile.layers)
  state = sum(l.update_ms + l.norm_ms for l in profile.layers)
  tokens = int(run["microbatch_size_per_gpu"]) * int(run["sequence_length"])
  published_ms = 1e3 * tokens / float(run["tokens_per_sec_per_gpu"])
  return (passes + state / int(run["num_gpus"])) / published_ms


class PublishedTest(parameterized.TestCase):

  # A second for each model, which is traced.
  @parameterized.parameters(*zip(samples.draw(_RUNS, 2)))
  def test_a_predicted_step_is_near_the_published_one(self, name):
    efficiency, share = machines.find_machine(_RUNS[name]["gpu"]).efficiency, find_share(name)
    self.assertBetween(share, efficiency.least, efficiency.most)
    if name.startswith(_AIMED):
      self.assertLess(abs(share / efficiency.likely - 1.0), _MOST_ERROR)

  def test_how_many_runs_are_aimed_at(self):
    self.assertLen([name for name in _RUNS if name.startswith(_AIMED)], 7)

  @samples.only_all
  @parameterized.parameters(("h100", "H100"), ("a100", "A100"), ("b200", ""))
  def test_efficiency_follows_from_the_runs(self, machine, gpu):
    found = machines.find_machine(machine).efficiency
    shares = [find_share(name) for name, run in _RUNS.items() if run["gpu"].startswith(gpu)]
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    want = (min(shares), mean, max(shares))
    self.assertEqual(found.num_runs, len(shares))
    for value, share in zip(found[:3], want, strict=True):
      self.assertAlmostEqual(value, share, delta=0.011)


def make_machine(**changes):
  facts = machines.find_machine("h100")
  return dataclasses.replace(facts, **changes)


class RooflineTest(parameterized.TestCase):

  @parameterized.parameters(
      # Operations and bytes of a product, at 10 / ms and 4 bytes / ms.
      (100, 8, 10.0 + 2.0),  # Bound by operations.
      (10, 8, 2.0 + 2.0),  # By memory.
  )
  def test_products(self, flops, num_bytes, want_ms):
    line = roofline.Roofline(10, 4, 1, roofline.LinkCost(0, 1))
    product = products.Product(flops, num_bytes)
    self.assertAlmostEqual(line.products_ms([product]), want_ms)

  @parameterized.parameters(
      # Whether attention is one kernel on GPUs, so that no scores are kept.
      ("gpt2", True, dict()),
      ("gpt2", False, dict(sequence_length=256)),
      ("gpt2", False, dict(documents=True)),
      ("gpt2", False, dict(attention_dropout_rate=0.1)),
      ("gpt2", False, dict(dtype="float32")),
      ("gpt2", False, dict(attention="xla")),
      ("gpt2", False, dict(num_heads=16)),  # Heads of width 4.
      ("bert", False, dict()),
      ("llama", True, dict()),
      ("llama", False, dict(documents=True)),
      ("llama", False, dict(head_width=12)),
  )
  def test_attention_says_whether_it_is_fused(self, name, is_fused, options):
    given = dict(dtype="bfloat16", sequence_length=512, positions=512)
    if name != "llama":
      given["dropout_rate"] = 0.0
    model = zoo.make_model(name, variant="tiny", **{**given, **options})
    spec = spec_lib.StageSpec(model, 0, len(model.layers), model.batch_shapes(2), optax.adamw(1e-3))
    line = roofline.Roofline.of(spec, make_machine())
    unit = next(u for u in spec.single_layers if "attention" in u.names[0])
    programs = programs_lib.UnitPrograms(unit)
    for which in ("forward", "backward"):
      find = functools.partial(products.find_products, programs.trace(which).jaxpr)
      found, least = (sum(p.num_bytes for p in find(is_fused=fused)) for fused in (False, True))
      self.assertEqual(found == least, is_fused)  # Without any scores.
    profile = profiler.estimate(unit, line, fingerprint={})
    # All that the backward pass gets.
    self.assertEqual(profile.layers[0].residual_bytes, profiler._residual_bytes(programs))

  def test_gpus_of_a_node(self):
    # 40 MB of weights at 1 MB / ms: a fourth stays, so gathering takes 30 ms.
    layer = profiles.make_layer(
        "a",
        forward_ms=8.0,
        backward_ms=400.0,
        parameter_bytes=40_000_000,
        activation_bytes=6_000_000,
    )
    machine = make_machine(inner_bytes_per_sec=1e9)
    profile = profiles.make_profile([layer])

    def spread(**given):
      (got,) = roofline.on_mesh(profile, machine, **given).layers
      return got.forward_ms, got.backward_ms

    self.assertEqual(spread(efficiency=1.0, data=4), (30.0, 100.0))
    self.assertEqual(spread(efficiency=1.0, tensor=2), (4.0 + 6.0, 206.0))
    self.assertEqual(spread(efficiency=0.5), (16.0, 800.0))
