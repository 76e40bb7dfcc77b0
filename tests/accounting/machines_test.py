from absl.testing import parameterized

from bamboo_jax.accounting import machines
from bamboo_jax.accounting import prices


class MachinesTest(parameterized.TestCase):

  def test_what_is_priced_agrees(self):
    for price in prices.load_prices(prices.DEFAULT_PATH):
      if price.instance in ("g5.xlarge", "NC6s_v3"):
        continue  # No data sheet of an A10G; no bandwidth is stated.
      machine = machines.find(price.instance)
      self.assertEqual(machine["gpu"], price.gpu)
      self.assertEqual(int(machine["gpu_count"]), price.gpu_count)

  @parameterized.parameters(
      ("p3.2xlarge", 1, 4e13, 1.25e9, 16.0),
      ("p5.48xlarge", 8, 3.956e14, 4e11, 80.0),
  )
  def test_apply(self, instance, count, flops, link, memory):
    got = machines.apply({"transformer": {"width": 8}}, instance)
    self.assertEqual(got["gpus_per_node"], count)
    self.assertEqual(got["memory_limit_gib"], memory)
    self.assertAlmostEqual(got["transformer"]["flops_per_sec"], flops)
    self.assertAlmostEqual(got["transformer"]["link_bytes_per_sec"], link)
    self.assertEqual(got["transformer"]["width"], 8)

  def test_unknown(self):
    with self.assertRaisesRegex(ValueError, "did you mean 'p3.2xlarge'"):
      machines.find("p3.2xlrge")
