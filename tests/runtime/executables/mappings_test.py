"""A process that runs out of mappings says so."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from bamboo_jax import base
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.executables import mappings, program_store as store_lib


class MappingsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.proc = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.enter_context(mock.patch.object(mappings, "_PROC", self.proc))
    mappings.limit.cache_clear()
    self.addCleanup(mappings.limit.cache_clear)

  def fill(self, number):
    (self.proc / "self").mkdir(exist_ok=True)
    (self.proc / "self/maps").write_text("7fac-7fad r-xp 00000000\n" * number)
    (self.proc / "sys/vm").mkdir(parents=True, exist_ok=True)
    (self.proc / "sys/vm/max_map_count").write_text("100\n")

  def test_the_last_tenth_is_kept(self):
    self.fill(90)
    mappings.check()
    self.fill(91)
    with self.assertRaisesRegex(base.CompilationError, "91 mappings of memory of the 100"):
      mappings.check()

  def test_a_system_without_them(self):
    self.assertIsNone(mappings.limit())
    mappings.check()

  def test_whoever_loads_programs_is_told(self):
    self.fill(95)
    store = store_lib.ProgramStore()
    program = compat.Compilation("a", compile=mock.Mock(), load=lambda data: 7)
    with self.assertRaisesRegex(base.CompilationError, "vm.max_map_count"):
      store._load(program, b"")
    self.fill(80)
    self.assertEqual(store._load(program, b""), 7)
