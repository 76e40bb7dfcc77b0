"""What is set before JAX starts, by platform, setting and environment."""

import contextlib

from absl.testing import parameterized

from bamboo_jax.runtime import accelerator

TRITON = "--xla_gpu_enable_triton_gemm"
STRICT = f"--xla_gpu_deterministic_ops=true {TRITON}=false"


class AcceleratorTest(parameterized.TestCase):

  @parameterized.parameters(
      ({}, False, [], "cpu", 0),
      ({}, True, ["nvidia0", "nvidia12", "nvidiactl"], "gpu", 2),
      # In some sandboxes and on WSL no device file has a number.
      ({}, True, ["nvidiactl"], "gpu", 1),
      ({"CUDA_VISIBLE_DEVICES": ""}, True, ["nvidia0"], "cpu", 0),
      ({"CUDA_VISIBLE_DEVICES": "3, 5"}, True, ["nvidia0"], "gpu", 2),
      ({"CUDA_VISIBLE_DEVICES": "3"}, False, [], "cpu", 0),
      ({"JAX_PLATFORMS": "cpu"}, True, ["nvidia0"], "cpu", 1),
      ({"JAX_PLATFORMS": "cuda,cpu"}, False, [], "gpu", 0),
      ({"JAX_PLATFORMS": "tpu,cpu"}, True, ["nvidia0"], "tpu", 1),
  )
  def test_platform(self, environ, is_seen, files, platform, count):
    gpus = accelerator.list_gpus(environ, is_seen=is_seen, device_files=files)
    self.assertLen(gpus, count)
    self.assertEqual(accelerator.find_platform(environ, gpus), platform)

  @parameterized.parameters(
      ("gpu", "", STRICT),
      ("gpu", "--a=1", f"--a=1 {STRICT}"),
      ("cpu", "", ""),
      ("tpu", "--a=1", "--a=1"),
      ("gpu", *["--xla_gpu_deterministic_ops=false"] * 2),
      ("gpu", f"{TRITON}=true", f"{TRITON}=true {STRICT.split()[0]}"),
  )
  def test_determinism(self, platform, before, after):
    environ = {"JAX_PLATFORMS": platform, "XLA_FLAGS": before}
    accelerator.set_determinism(environ)
    self.assertEqual(environ["XLA_FLAGS"], after)

  @parameterized.parameters(
      ("gpu", {}, "WHILE"),
      ("cpu", {}, None),
      ("gpu", {"XLA_FLAGS": "--a=1"}, "WHILE"),
      ("gpu", {"XLA_FLAGS": "--xla_gpu_enable_command_buffer=-WHILE"}, None),
  )
  def test_graphs(self, platform, environ, last):
    options = accelerator.find_graph_options(platform, environ) or {}
    kinds = options.get("xla_gpu_enable_command_buffer")
    self.assertEqual(kinds and kinds.split(",")[-1], last)

  @parameterized.parameters(
      *((0.25, 4, 1), (0.5, 4, 2), (1.0, 1, 0), (None, 9, 1), (0.1, 10, 1)),
      (0.3, 4, 1, "at most 0.25, .* got 0.3, 1.2 in sum"),
      (0.6, 3, 2, "at most 0.5, as 2 of 3 workers share a GPU"),
      (0.0, 1, 1, "above 0"),
      (-1.0, 1, 0, "above 0"),
      (1.5, 1, 1, "at most 1"),
  )
  def test_fractions(self, fraction, num_workers, num_gpus, problem=None):
    refused = self.assertRaisesRegex(ValueError, problem) if problem else contextlib.nullcontext()
    with refused:
      accelerator.check_fraction(fraction, num_workers=num_workers, gpus=["0"] * num_gpus)

  def test_a_worker_gets_its_gpu_and_its_part_of_it(self):
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9", "A": "b"}
    accelerator.take_fraction(environ, 0.2)
    self.assertEqual(environ, {"XLA_CLIENT_MEM_FRACTION": "0.2", "A": "b"})
    accelerator.share_with_child(environ)
    self.assertEqual(environ["XLA_PYTHON_CLIENT_PREALLOCATE"], "false")
    given = {"A": "b", "CUDA_VISIBLE_DEVICES": "4"}
    self.assertEqual(accelerator.give_gpu({"A": "b"}, "4"), given)
    self.assertEqual(accelerator.give_gpu({"A": "b"}, None), {"A": "b"})
