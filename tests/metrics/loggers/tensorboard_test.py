import pathlib
import struct
import sys
import tempfile

from absl.testing import absltest
from tensorboardX.proto import event_pb2

from bamboo_jax.metrics.loggers import tensorboard


def _read_scalars(folder):
  """Returns [(step, name, value)] of the only event file, a TFRecord file."""
  (path,) = pathlib.Path(folder).glob("events.*")
  data = path.read_bytes()
  scalars = []
  while data:
    # A length and its checksum, the event, and its checksum.
    (length,) = struct.unpack("<Q", data[:8])
    event = event_pb2.Event.FromString(data[12 : 12 + length])
    scalars += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
    data = data[16 + length :]
  return scalars


class TensorBoardTest(absltest.TestCase):

  def test_numbers_become_scalars(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    writer = tensorboard.TensorBoard(folder, 0)
    writer.log(3, {"loss": 2.5, "tokens": 8, "rung": "shadow"})
    writer.event("eval", 3, {"loss": 2.75})
    writer.event("join", 3, {"secs": 2.75})
    writer.close()
    self.assertEqual(
        _read_scalars(folder / "events"),
        [(3, "train/loss", 2.5), (3, "train/tokens", 8), (3, "eval/loss", 2.75)],
    )

  def test_missing_extra_is_named(self):
    self.addCleanup(sys.modules.update, tensorboardX=sys.modules["tensorboardX"])
    sys.modules["tensorboardX"] = None  # Makes the import fail.
    with self.assertRaisesRegex(ValueError, r"bamboo_jax\[tensorboard\]"):
      tensorboard.TensorBoard(pathlib.Path("never made"), 0)
