import json
import shutil

import jax
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.models import zoo
from bamboo_jax.runtime.stage import spec as spec_lib
from tests.checkpoint import writer_test

_MODEL = zoo.make_model("llama", variant="tiny", num_blocks=1, lora_rank=2)
_SPEC = spec_lib.StageSpec(
    model=_MODEL,
    first=0,
    last=len(_MODEL.layers),
    batch=_MODEL.batch_shapes(1),
    optimizer=optax.adamw(1e-3),
)


class FrozenTest(writer_test.WriterCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.layers = spec_lib.init_layers(_SPEC)

  def start(self):
    """Returns a writer, as each start of a run makes one."""
    return self.make(keep=3, every_steps=0, model=_SPEC)

  def save(self, writer, step):
    around = dict(view=1, owners=((0,),), states={0: self.layers})
    writer.save_last(step, lambda what, value: {0: value}, waiting=lambda: None, **around)

  def assert_restores(self, step):
    found = self.start().restore(step, [*self.layers])
    jax.tree.map(np.testing.assert_array_equal, found, self.layers)

  def manifest(self, step):
    (path,) = self.root.glob(f"{step}.*")
    return path, json.loads(path.read_text())

  def num_bytes(self, *folders):
    return sum(p.stat().st_size for f in folders for p in (self.root / f).rglob("*") if p.is_file())

  def test_they_are_written_once_in_a_run(self):
    """The run goes on without the weights it began from, and after older ones are removed."""
    first = self.start()
    self.save(first, 2)
    whole = spec_lib.nbytes([l.params for l in self.layers.values()])
    self.assertGreater(self.num_bytes("frozen"), 0.9 * whole)
    (once,) = (self.root / "frozen").iterdir()
    self.save(first, 4)
    self.assert_restores(4)
    again = self.start()
    self.save(again, 6)
    self.save(again, 8)
    self.save(self.start(), 10)
    self.assertCountEqual(
        {p.name.partition(".")[0] for p in self.root.iterdir()}, ["frozen", "6", "8", "10"]
    )
    self.assertEqual([*(self.root / "frozen").iterdir()], [once])
    self.assertLess(self.num_bytes("6", "8", "10"), whole)
    for step in (6, 8, 10):
      self.assert_restores(step)
    _, manifest = self.manifest(10)
    stored = manifest["layers"][_MODEL.layer_names[1]]["arrays"]
    parts = {f"params/lora_{x}_{t}_proj/kernel" for x in "ab" for t in "qv"}
    self.assertEqual({name for name in stored if name.startswith("params/")}, parts)
    self.assertTrue(any(name.startswith("slots/") for name in stored))

  def test_damage_is_found(self):
    self.save(self.start(), 2)
    for path in (self.root / "frozen").rglob("d/*"):
      path.write_bytes(bytes(0xFF ^ byte for byte in path.read_bytes()))
    with self.assertRaisesRegex(base.DamagedCheckpointError, "is not as saved|Cannot read"):
      self.start().restore(2, [*self.layers])

  def test_what_somebody_removed_is_written_again(self):
    writer = self.start()
    self.save(writer, 2)
    self.save(writer, 4)
    shutil.rmtree(self.root)
    self.save(writer, 6)
    ((_, step, text),) = self.warnings
    self.assertEqual(step, 6)
    self.assertRegex(text, "Cannot save step 6 .* frozen weights are gone")
    self.assert_restores(6)

  def test_format_3_has_them_elsewhere(self):
    self.save(self.start(), 2)
    path, manifest = self.manifest(2)
    for name, entry in manifest.pop("frozen").items():
      manifest["layers"][name]["frozen"] = {k: entry[k] for k in ("sha256", "arrays")}
    manifest["format"] = 3
    del manifest["sha256"]
    manifest["sha256"] = manifest_lib._sha256(manifest)
    path.write_text(json.dumps(manifest))
    with self.assertRaisesRegex(base.CheckpointError, "frozen weights are in another folder") as e:
      manifest_lib.read_manifest(path)
    self.assertNotIsInstance(e.exception, base.DamagedCheckpointError)
