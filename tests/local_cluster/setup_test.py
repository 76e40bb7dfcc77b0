"""What is rejected before a cluster starts."""

import os
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.local_cluster import setup as setup_lib
from bamboo_jax.runtime import compat
from tests import tiny


class SetupTest(parameterized.TestCase):

  @parameterized.parameters(("0", "", True), ("0", "cpu", False), ("", "", False))
  def test_programs_on_accelerators(self, gpus, platforms, is_rejected):
    environ = {"CUDA_VISIBLE_DEVICES": gpus, "JAX_PLATFORMS": platforms}
    self.enterContext(mock.patch.dict(os.environ, environ))
    self.enterContext(mock.patch.object(compat, "sees_nvidia_gpu", lambda: bool(gpus)))
    setup_lib.check(tiny.get_config(), ["a"])
    config = tiny.make_config(pipeline__executor="spmd")
    if not is_rejected:
      setup_lib.check(config, ["a"])
      return
    with self.assertRaisesRegex(ValueError, "set executor='rows'"):
      setup_lib.check(config, ["a"])
