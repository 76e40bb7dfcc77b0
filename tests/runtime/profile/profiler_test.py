"""A profile says what the layers cost; an estimate says it without running."""

import dataclasses
import time
from unittest import mock

from absl.testing import parameterized
import jax

from bamboo_jax.runtime.profile import profiler, roofline
from tests.gpu import settings as settings_lib
from tests.runtime import engine_test as engines
from tests.runtime.spmd import pipelines
from tests.runtime.stage import casts_test


def fingerprint(spec):
  return profiler.fingerprint_of(spec, device=jax.devices()[0])


def estimate(spec):
  return profiler.estimate(spec, roofline.assume("cpu"), fingerprint=fingerprint(spec))


class ProfilerTest(parameterized.TestCase):

  def check_sizes(self, profile):
    whole = engines.make_whole()
    self.assertEqual([layer.name for layer in profile.layers], list(whole.model.layer_names))
    for layer in profile.layers:
      params = jax.tree.leaves(whole.state[layer.name].params)
      self.assertEqual(layer.parameter_bytes, sum(4 * p.size for p in params), layer.name)
      # AdamW has two slots per parameter and a count.
      self.assertEqual(layer.slot_bytes, 2 * layer.parameter_bytes + 4)
    activation = 4 * engines.MICROBATCH_SIZE * 32 * 64
    self.assertEqual(
        [layer.activation_bytes for layer in profile.layers],
        [activation] * (len(profile.layers) - 1) + [0],
    )
    (tie,) = profile.ties
    self.assertEqual((tie.owner, tie.user), ("embed", "head"))
    self.assertEqual(tie.tied_bytes, 4 * 64 * 64)

  def test_measured(self):
    whole = engines.make_whole()
    seen = []
    profile = profiler.measure(
        whole,
        batch=engines.make_batches(1).microbatch(0, 0),
        device=jax.devices()[0],
        fingerprint=fingerprint(whole),
        num_repeats=3,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    self.assertTrue(profile.measured)
    self.check_sizes(profile)
    self.assertEqual(seen, [(i, 6) for i in (1, 3, 5, 6)])
    for layer in profile.layers:
      self.assertGreater(layer.forward_ms + layer.backward_ms, 0)
      self.assertGreater(layer.update_ms, 0)
    first, second = profile.layers[1], profile.layers[3]
    self.assertEqual(dataclasses.replace(first, name=second.name), second)
    # Sums take the same link, and a vote is three messages.
    link = (profile.link_latency_ms, profile.link_bytes_per_ms)
    self.assertEqual((profile.reduce_latency_ms, profile.reduce_bytes_per_ms), link)
    self.assertEqual(profile.vote_ms, 3 * profile.link_latency_ms)

  def test_estimated(self):
    profile = estimate(engines.make_whole())
    self.assertFalse(profile.measured)
    self.check_sizes(profile)
    self.assertEqual(profile, estimate(engines.make_whole()))
    # Attention and MLP: each product of the forward pass has two in backward.
    for layer in profile.layers[1:5]:
      ratio = layer.backward_ms / layer.forward_ms
      self.assertBetween(ratio, 1.7, 2.3, layer.name)
    *others, head = profile.layers
    for layer in others:  # With the copy to host memory.
      self.assertGreater(layer.redundant_ms, layer.forward_ms)
    self.assertEqual(head.redundant_ms, 0.0)

  def test_copies_of_weights(self):
    """Bias and weights in bfloat16, and the embedding in the head."""
    spec, sizes = casts_test.make_spec(), [0, 2 * 1088, 2 * 2128, 2 * 512]
    measured = profiler.measure(
        spec,
        batch=pipelines.microbatch(0, 0),
        device=jax.devices()[0],
        fingerprint={},
        num_repeats=1,
    )
    for profile in (measured, estimate(spec)):
      self.assertEqual([l.copy_bytes for l in profile.layers], sizes)

  def test_logits_are_wider_than_what_is_kept_of_them(self):
    settings = dataclasses.replace(settings_lib.SMOKE, vocab_size=512, microbatch_size=32)
    *_, head = estimate(settings_lib.make_whole(settings)).layers
    self.assertEqual(head.working_bytes, 4 * 32 * 32 * 512)

  @parameterized.parameters(
      # Milliseconds by bytes, then latency and rate.
      ({1000: 0.5, 5000: 2.5}, 0.5, 2000.0),
      ({5000: 2.5, 1000: 0.5}, 0.5, 2000.0),
      ({1000: 0.0, 2000: 4.0}, 0.0, 250.0),
      ({0: 2.0, 1000: 2.0}, 2.0, 1e9),  # Noise is larger than what bytes cost.
      ({0: 2.0, 1000: 1.0}, 2.0, 1e9),
  )
  def test_fit_of_a_link(self, times_ms, latency_ms, bytes_per_ms):
    link = profiler.fit_link({size: [ms, ms] for size, ms in times_ms.items()})
    self.assertEqual(link.latency_ms, latency_ms)
    self.assertAlmostEqual(link.bytes_per_ms, bytes_per_ms, delta=1e-6 * bytes_per_ms)

  def test_a_link_is_measured_between_passes(self):
    """The time of a transfer does not contain the pass before it."""
    pass_secs = 0.25  # More than what sets up takes.
    with mock.patch.multiple(profiler, fit_link=dict, _WARMUP=0, _PASS_SECS=pass_secs):
      start_secs = time.perf_counter()
      times_ms = [*profiler.measure_link(jax.devices()[0], 1).values()]
      ms = 1e3 * (time.perf_counter() - start_secs)
    (small_ms,), (large_ms,) = times_ms
    self.assertGreater(min(small_ms, large_ms), 0)
    self.assertLess(small_ms + large_ms, ms - 2e3 * pass_secs)

  @parameterized.parameters(dict(remat="dots"), dict(prng="rbg"))
  def test_fingerprint_depends_on(self, **changes):
    whole = engines.make_whole()
    other = dataclasses.replace(whole, **changes)
    self.assertNotEqual(fingerprint(other), fingerprint(whole))
