import json
import os
import pathlib
import tempfile

from absl.testing import absltest
import jax
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    frozen as frozen_lib,
    identity as identity_lib,
    manifest as manifest_lib,
    writer as writer_lib,
)
from bamboo_jax.models import layer as layer_lib, zoo
from bamboo_jax.runtime.stage import spec as spec_lib

_MODEL = zoo.make_model("llama", variant="tiny", num_blocks=1, lora_rank=2)
_SPEC = spec_lib.StageSpec(
    model=_MODEL,
    first=0,
    last=len(_MODEL.layers),
    batch=_MODEL.batch_shapes(1),
    optimizer=optax.adamw(1e-3),
)
_OWNERS = ((0,),)


class FrozenTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.layers = spec_lib.init_layers(_SPEC)

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(folder)
    self.base = {
        name: layer_lib.Variables(dict(layer.params), layer.stats)
        for name, layer in self.layers.items()
    }
    self.error = None

  def read(self, layer):
    if self.error:
      raise self.error
    return self.base[layer]

  def make(self, *, weights=True):
    """Returns a writer, as each start of a run makes one."""
    writer = writer_lib.Writer(
        self.root,
        keep=3,
        every_steps=0,
        member=0,
        model=_SPEC,
        identity=identity_lib.RunIdentity(seed=0, batch_size=1, model={"lora": 2}, data={}),
        warn=lambda step, text: self.fail(text),
        check_fence=lambda: None,
        weights=frozen_lib.InitialWeights("the/base", self.read) if weights else None,
    )
    self.addCleanup(writer.close)
    return writer

  def save(self, writer, step):
    writer.save_last(
        step,
        lambda what, value: {0: value},
        view=1,
        owners=_OWNERS,
        states={0: spec_lib.merge_layers(self.layers)},
        waiting=lambda: None,
    )

  def assert_restores(self, writer, step):
    found = writer.restore(step, [*self.layers])
    jax.tree.map(np.testing.assert_array_equal, found, self.layers)

  def stored(self, step):
    """Returns the names of the arrays of a checkpoint, and its size."""
    path = self.root / f"{step}" / "manifest.json"
    manifest = json.loads(path.read_text())
    layers = manifest["layers"].values()
    names = {name for layer in layers for name in layer["arrays"]}
    return names, sum(manifest["files"].values())

  def test_only_what_is_trained_is_stored(self):
    writer = self.make()
    self.save(writer, 2)
    self.save(writer, 4)  # It copies nothing else from the devices, either.
    for step in (2, 4):
      names, num_bytes = self.stored(step)
      params = {name for name in names if name.startswith("params/")}
      parts = {f"params/lora_{x}_{t}_proj/kernel" for x in "ab" for t in "qv"}
      self.assertEqual(params, parts)
      self.assertTrue(any(name.startswith("slots/") for name in names))
      whole = spec_lib.nbytes([l.params for l in self.layers.values()])
      self.assertLess(num_bytes, whole / 4)
      self.assert_restores(self.make(), step)

  def test_other_weights(self):
    self.save(self.make(), 2)
    name = _MODEL.layer_names[1]
    (array, *_), _ = jax.tree.flatten(self.base[name].params["q_proj"])
    changed = np.array(array)
    changed.flat[0] = np.nextafter(changed.flat[0], 1)
    self.base[name].params["q_proj"] = {"kernel": changed}
    with self.assertRaisesRegex(
        base.CheckpointError,
        rf"the/base has changed since: layer {name!r} has other frozen weights",
    ):
      self.make().restore(2, [*self.layers])
    with self.assertRaisesRegex(base.CheckpointError, "set config.init_from"):
      self.make(weights=False).restore(2, [*self.layers])
    self.error = base.DamagedCheckpointError("The base is damaged.")
    with self.assertRaisesRegex(base.CheckpointError, "The base is damaged"):
      self.make().restore(2, [*self.layers])
    self.assertEqual(os.listdir(self.root), ["2"])  # It is not set aside.

  def test_what_the_weights_do_not_have_is_stored(self):
    """Such as those of a checkpoint of the second format, which stores all."""
    self.save(self.make(weights=False), 2)
    path = self.root / "2" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    for layer in manifest["layers"].values():
      del layer["frozen"]
    manifest["format"] = 2
    manifest["sha256"] = manifest_lib._sha256(manifest)
    path.write_text(json.dumps(manifest))
    self.error = base.CheckpointError("There are no weights in the/base.")
    writer = self.make()
    self.assert_restores(writer, 2)
    with self.assertLogs("absl", "WARNING") as logs:
      self.save(writer, 4)
    self.assertIn("no weights in the/base. Checkpoints store", logs.output[0])
    self.assert_restores(self.make(), 4)
    self.assertEqual(self.stored(4)[0], self.stored(2)[0])
    self.assertIn("params/q_proj/kernel", self.stored(4)[0])
