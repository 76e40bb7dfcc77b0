"""A cluster on a machine with two GPUs, each a stand-in made of CPUs.

It cannot show what CUDA does, but what CUDA is told: see `cuda_stand_in`.
"""

import json
import os
import pathlib

from absl.testing import parameterized

from tests import samples
from tests.launch import commands

_STAND_IN = pathlib.Path(__file__).with_name("cuda_stand_in")


@samples.only_all
class ClusterCudaTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 1,
      "model.options.num_blocks": 1,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "redundancy.mode": "none",
  }

  def start_cluster(self, platforms):
    records = self.folder / "records"
    records.mkdir()
    self.ENVIRON = {
        "JAX_PLATFORMS": platforms,
        "PYTHONPATH": f"{_STAND_IN}:{os.environ.get('PYTHONPATH', '')}",
        "RECORDS": str(records),
        "CUDA_VISIBLE_DEVICES": "4,6",
        "XLA_FLAGS": "",
    }
    return self.start("cluster", "--device_memory_fraction=0.3", workdir="cluster")

  def read_workers(self):
    """Returns the settings that workers have recorded so far."""
    paths = (self.folder / "records").glob("*.json")
    texts = [path.read_text() for path in paths]
    found = [json.loads(text) for text in texts if text.endswith("\n")]
    return [f for f in found if f["fraction"]]

  @parameterized.parameters("", "cuda,cpu")
  def test_what_cuda_is_given(self, platforms):
    cluster = self.start_cluster(platforms)
    if not platforms:  # One of the two trains to the end.
      self.finish(cluster)
    self.wait_for(lambda: len(self.read_workers()) >= 2, "second worker")
    workers = self.read_workers()
    self.assertCountEqual([f["gpu"] for f in workers], ["4", "6"])
    for worker in workers:
      self.assertEqual(worker["fraction"], "0.3")
      self.assertIn("--xla_gpu_deterministic_ops=true", worker["flags"])
      told = (worker["has_client"], worker["process"], worker["num_processes"])
      self.assertEqual(told, (False, 0, 1))
      self.assertEqual("cpu" in worker["before"], not platforms)
