"""Products of a model, and the rate at which a device makes them."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax.metrics import table as table_lib
from bamboo_jax.models import zoo
from bamboo_jax.runtime.profile import products
from bamboo_jax.runtime.stage import spec as spec_lib
from tests.gpu import mfu


def make_rate(**changes):
  fields = dict(
      unit="stage 0",
      program="forward",
      ms=2.0,
      alone_ms=2.5,
      compile_secs=1.0,
      model_flops=4 * 10**11,
      moved_bytes=10**9,
      temp_bytes=2**20,
  )
  return mfu.ProgramRate(**(fields | changes))


class FlopsTest(parameterized.TestCase):

  def test_of_gpt2(self):
    s, l, d, h, v = 3, 16, 32, 4, 50
    model = zoo.make_model(
        "gpt2", variant="tiny", num_blocks=2, width=d, num_heads=h, sequence_length=l, vocab_size=v
    )
    batch = {key: jax.ShapeDtypeStruct((s, l), jnp.int32) for key in ("inputs", "targets")}
    whole = spec_lib.StageSpec(
        model=model, first=0, last=len(model.layers), batch=batch, optimizer=optax.sgd(0.1)
    )
    attention = 2 * s * l * 4 * d * d + 2 * 2 * s * l * l * d
    mlp = 2 * s * l * 8 * d * d
    self.assertEqual(
        products.layer_flops(whole),
        {
            "embed": 0,
            "block_00.attention": attention,
            "block_00.mlp": mlp,
            "block_01.attention": attention,
            "block_01.mlp": mlp,
            "head": 2 * s * l * d * v,
        },
    )
    self.assertEqual(mfu.unread_attention(whole), 2 * 2 * s * l * l * d)

  @parameterized.named_parameters(
      ("batched", lambda a: jnp.einsum("bij,bkj->bik", a, a), 2 * 4 * 6 * 6 * 5),
      ("scan", lambda a: jax.lax.scan(lambda c, x: (c, x @ c.T), a[0], a), 4 * 2 * 6 * 5 * 6),
      ("remat", jax.checkpoint(lambda a: a[0] @ a[1].T), 2 * 6 * 5 * 6),
      (
          "cond",
          lambda a: jax.lax.cond(a[0, 0, 0] > 0, lambda: a[0] @ a[1].T, lambda: jnp.zeros((6, 6))),
          2 * 6 * 5 * 6,
      ),
      (
          "conv",
          lambda a: jax.lax.conv(a[None], jnp.ones((7, 4, 3, 3)), (1, 1), "VALID"),
          2 * 7 * 4 * 3 * 4 * 9,
      ),
      ("elementwise", lambda a: jnp.tanh(a) * a, 0),
  )
  def test_of(self, function, want):
    shape = jax.ShapeDtypeStruct((4, 6, 5), jnp.float32)
    self.assertEqual(products.count_products(function, shape), want)

  def test_unknown_number_of_products(self):
    def loop(a):
      return jax.lax.while_loop(lambda a: a[0, 0] > 0, lambda a: a @ a, a)

    with self.assertRaisesRegex(ValueError, "unknown length"):
      products.count_products(loop, jax.ShapeDtypeStruct((2, 2), jnp.float32))
    jaxpr = jax.make_jaxpr(loop)(np.eye(2, dtype=np.float32))
    self.assertEqual(products.find_products(jaxpr, loop_length=3), [(3 * 16, 3 * 48, 0)])


class MfuTest(parameterized.TestCase):

  def test_rates(self):
    rate = make_rate()
    self.assertAlmostEqual(rate.tflops, 200.0)
    self.assertAlmostEqual(rate.mfu(800.0), 0.25)
    self.assertAlmostEqual(rate.gigabytes_per_sec, 500.0)

  def test_table(self):
    rates = [make_rate(), make_rate(program="update", model_flops=0)]
    known = mfu.table_rows(rates, peak_tflops=800.0)
    self.assertEqual(
        table_lib.align(known, left=(0, 1)),
        "unit     program  compile s     ms  alone ms  GFLOP  TFLOP/s"
        "  MFU %  GB/s  temp MiB\n"
        "stage 0  forward        1.0  2.000     2.500    400    200.0"
        "   25.0   500         1\n"
        "stage 0  update         1.0  2.000     2.500      -        -"
        "      -   500         1",
    )
    unknown = mfu.table_rows(rates, peak_tflops=None)
    self.assertEqual([row[7] for row in unknown], ["MFU %", "-", "-"])

  def test_time_must_be_positive(self):
    with self.assertRaisesRegex(ValueError, "ms must be positive"):
      make_rate(ms=0.0)
