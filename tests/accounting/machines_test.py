from absl.testing import parameterized

from bamboo_jax.accounting import machines, prices


class MachinesTest(parameterized.TestCase):

  def test_instances(self):
    found: dict[str, machines.Machine] = {}
    for price in prices.load_prices(prices.DEFAULT_PATH):
      if price.instance in ("g5.xlarge", "NC6s_v3"):
        continue  # No data sheet of an A10G; no bandwidth is stated.
      machine = machines.find_machine(price.instance)
      self.assertEqual((machine.gpu, machine.num_gpus), (price.gpu, price.gpu_count))
      self.assertEqual(machine.network_bytes_per_sec, price.network_gbit_per_sec / 8 * 1e9)
      self.assertEqual(found.setdefault(price.instance, machine), machine)
    with self.assertRaisesRegex(ValueError, "Unknown machine 'g5.xlarge'"):
      machines.find_machine("g5.xlarge")

  def test_unknown(self):
    with self.assertRaisesRegex(ValueError, "did you mean 'p3.2xlarge'"):
      machines.find_machine("p3.2xlrge")

  @parameterized.parameters(
      ("NVIDIA H100 80GB HBM3", 989.0),
      ("NVIDIA H100 PCIe", 756.5),
      ("NVIDIA H200", 989.0),
      ("NVIDIA GH200 480GB", 989.0),
      ("NVIDIA A100-SXM4-40GB", 312.0),
      ("NVIDIA L4", 121.0),
      ("NVIDIA L40S", 362.0),
      ("NVIDIA H100 NVL", 835.0),
      ("Tesla V100-SXM2-16GB", None),
      ("NVIDIA A10G", None),
      ("cpu", None),
  )
  def test_peak(self, kind, want):
    self.assertEqual(machines.find_peak_tflops(kind, dtype="bfloat16"), want)
    self.assertIsNone(machines.find_peak_tflops(kind, dtype="float32"))

  @parameterized.parameters(
      ("NVIDIA A100-SXM4-40GB", "A100 40G"),
      ("NVIDIA A100-SXM4-80GB", "A100 80G"),
      ("NVIDIA H100 NVL", "H100 94G"),
  )
  def test_kind(self, kind, gpu):
    self.assertEqual(machines.find_kind(kind)["gpu"], gpu)
    self.assertGreater(machines.find_machine(gpu).flops_per_sec, 1e14)

  def test_all_gpus_have_their_facts(self):
    for name in machines._read("gpus.csv", "gpu"):
      self.assertGreater(machines.find_machine(name).memory_bytes_per_sec, 1e11)
