from absl.testing import absltest

from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.profile import products
from bamboo_jax.training.record import mfu
from bamboo_jax.training.setup import accept, job as job_lib
from tests import tiny


class MfuTest(absltest.TestCase):

  def test_share_of_the_peak(self):
    job = job_lib.make_job(
        accept.accept(tiny.get_config()), devices=devices_lib.place_nodes([0, 1])
    )
    self.assertIsNone(mfu.Mfu.of(job))  # The peak of a CPU.
    one = mfu.Mfu(job, peak_flops=1e9)
    per_microbatch = sum(products.layer_flops(job.task.whole).values())
    self.assertAlmostEqual(
        one.find_pct(0.5, num_nodes=2),
        100 * 3 * per_microbatch * job.plan.batch.total_microbatches / 1e9,
    )
