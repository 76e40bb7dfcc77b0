"""Plans for rented machines: text, proposals, and what cannot be."""

import dataclasses
import re

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.training.setup import accept, build, job as job_lib, show
from tests import folders, tiny

_LINK = dict(plan__region_latency_ms=50.0, plan__region_mbits=200.0)


def make_config(machine="p5.48xlarge", **changes):
  config = tiny.get_config()
  config.data.name = "text_files"  # There are none: planning reads no data.
  config.data.options = dict(pattern="/nowhere/*.txt")
  config.evaluate.every_steps = 0
  config.plan.machine = machine
  return accept.accept(tiny.change(config, **changes))


class ShowTest(folders.FolderCase):

  def forecast(self, config):
    return show.forecast(config, build.make_task(config, needs_data=False))

  def test_text(self):
    planned = show.make_plan(make_config())
    nodes = planned.plan.num_pipelines * planned.plan.num_stages
    for words in (
        f"x 1 GPUs: {nodes} x H100 80G\n",
        "as 6 published runs reach",
        r"speed: [\d,]+ tokens/s \([\d,]+ to [\d,]+\), MFU \d+ %",
        r"memory: 0\.\d of 79\.1 GiB per GPU",
        r"cost: \$[\d,]+ a day, \$[\d,.]+ per billion tokens .* p5.48xlarge",
    ):
      self.assertRegex(planned.text, words)
    self.assertIn("rows of pipeline 0", planned.details)

  def test_numbers_agree(self):
    size = dict(pipeline__microbatch_size=2**13)
    one, two = (self.forecast(make_config(node__mesh__data=n, **size)) for n in (1, 2))
    number = lambda pattern, text: float(re.search(pattern, text)[1].replace(",", ""))
    self.assertEqual(number(r"GPUs: (\d+) x", two), 2 * number(r"GPUs: (\d+) x", one))
    memory = r"memory: ([\d.]+) of"
    self.assertLess(number(memory, two), number(memory, one))
    one = self.forecast(make_config())
    per_day, price = number(r"\$([\d,]+) a day", one), number(r"\$([\d.]+) an hour", one)
    per_gpu = price / 8 * 24 * number(r"GPUs: (\d+) x", one)
    self.assertAlmostEqual(per_day, per_gpu, delta=1.0)
    speed, usd = number(r"speed: ([\d,]+)", one), number(r"\$([\d,.]+) per billion", one)
    self.assertAlmostEqual(usd, per_gpu / 86400 / speed * 1e9, delta=0.02 * usd)
    likely, least, most = map(float, re.search(r"step: (\S+) s \((\S+) to (\S+)\)", one).groups())
    self.assertBetween(likely, least, most)

  def test_a_measured_profile_takes_precedence(self):
    config = make_config()
    made = build.make_profile(config, build.make_task(config, needs_data=False))
    layers = [dataclasses.replace(l, forward_ms=500.0, backward_ms=1000.0) for l in made.layers]
    facts = dict(made.fingerprint, device="gpu NVIDIA H100")
    profile = dataclasses.replace(made, layers=tuple(layers), measured=True, fingerprint=facts)
    path = self.folder / "profile.json"
    path.write_text(cost_model.to_json(profile))
    found = self.forecast(make_config(plan__profile=str(path)))
    secs = re.search(r"step: (\S+) s \((\S+) to (\S+)\), from a measured profile", found)
    self.assertLen({*secs.groups()}, 1)
    self.assertGreater(float(secs[1]), 1.0)

  def test_proposals(self):
    config = make_config("g4dn.12xlarge", pipeline__num_microbatches=8)
    text = show.propose(config, 1)
    self.assertRegex(text, r"\d+ layouts fit, \d+ do not")
    self.assertRegex(text, r"best: [\d.]+ % faster than the next one, by")
    self.assertIn("--config.pipeline.num_stages=", text)
    *_, secs, _, _, gib = text.splitlines()[1].split()
    self.assertIn(f"\nstep: {secs} s (", text)
    self.assertIn(f"\nmemory: {gib} of ", text)
    text = show.propose(make_config("l4", redundancy__mode="none"), 1)
    self.assertIn("\nbest: the only layout that fits", text)

  def test_a_plan_has_one_bubble(self):
    more = dict(redundancy__mode="eager", pipeline__num_microbatches=8)  # So passes take longer.
    config = accept.accept(tiny.make_config(**more))
    planned = show.make_plan(config)
    self.assertIn("REDUNDANT_FORWARD", {s.instruction.op.name for s in planned.timeline.slots})
    self.assertAlmostEqual(planned.plan.step_time.compute_ms, planned.timeline.span_ms)
    text = f"{planned.text}\n"
    text += job_lib.make_job(config, devices=None).describe_plan()
    found = re.findall(r"([\d.]+) % bubble|bubble ([\d.]+) %(?:\n|$)", text)
    self.assertLen(found, 3)
    self.assertLen({one or other for one, other in found}, 1, msg=text)

  def test_what_crosses_between_regions(self):
    config = make_config(None, **_LINK)
    line = show.make_plan(config, ("us/a", "eu/a")).text.splitlines()[1]
    found = re.fullmatch(
        r"between regions: ([\d.]+) MiB a step, (\d+) ms of the link and 50 ms of latency "
        r"each way; predicted step (\d+) ms, (\d+) ms within one region",
        line,
    )
    mib, link_ms, far_ms, near_ms = map(float, found.groups())
    self.assertBetween(2 * link_ms / 1e3 * 25e6 / 2**20, mib - 0.1, mib + 0.1)
    self.assertGreater(far_ms, near_ms + 100.0)
    self.assertIn(f"predicted step: {near_ms:.0f}", show.make_plan(config).text)

  @parameterized.parameters(
      ("h10", {}, "Unknown machine 'h10'; did you mean 'h100'"),
      ("p5.48xlarge", {"node__mesh__tensor": 3}, "mesh.tensor=3 must divide the 8 GPUs of .*'p5.4"),
      (None, {}, "needs the link .*region_latency_ms and config.plan.region_m", "us/a", "eu/a"),
      (None, _LINK, "of several regions, such as us/a,eu/a, got", "us/a", "us/b"),
      (None, _LINK, "got 'eu/'", "us/a", "eu/"),
  )
  def test_refuses(self, machine, changes, message, *zones):
    with self.assertRaisesRegex(ValueError, message):
      show.make_plan(make_config(machine, **changes), zones)

  def test_a_model_that_does_not_fit(self):
    config = make_config("l4", pipeline__microbatch_size=2**24)
    message = (
        r"config.plan.machine='l4', with nodes of 1 x L4 .*: .* in 22\.0 GiB .* stage \d .* needs "
        r".* too much\. Use more stages"
    )
    with self.assertRaisesRegex(base.InfeasibleError, message):
      show.make_plan(config)
