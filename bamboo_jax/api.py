"""What Python code calls: `import bamboo_jax` offers these functions.

Each imports what it needs when it is called: importing this module is quick and
leaves JAX alone, which must be started with the right devices and threads.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import os
import pathlib
import pprint
import signal
import subprocess
import sys
import tempfile
from typing import Any, TYPE_CHECKING

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import json as json_lib, packaged
from bamboo_jax.cli import config_flag
from bamboo_jax.cluster import mirror
from bamboo_jax.metrics import summary as summary_lib

if TYPE_CHECKING:
  import ml_collections

  from bamboo_jax.models import model as model_lib
  from bamboo_jax.training.setup import show

_MOST_DEVICES = 8
_CONFIG_FILE = '''"""The config of this run, as Python code made it."""

import ml_collections


def get_config():
  return ml_collections.ConfigDict({values})
'''


def get_config(name: str = "default") -> "ml_collections.ConfigDict":
  """Returns a config to change and train; `configs/default.py` has them all.

  Args:
    name: What `--config` takes: the short name of a packaged config, as
      `bamboo --help` lists them, or the path of a file with `get_config()`;
      "gpt2:xl" passes the argument "xl".

  Raises `ValueError` if there is neither.
  """
  return config_flag.load(name)


def train(
    config: "ml_collections.ConfigDict",
    *,
    workdir: str | os.PathLike[str],
    faults: str | os.PathLike[str] | Sequence[str] | None = None,
    stop_at: int | None = None,
    callbacks: Sequence[Callable[[int, Mapping[str, Any]], Any]] = (),
) -> summary_lib.Result:
  """Trains with all nodes in this process, each a virtual device.

  A run that is in `workdir` already is resumed from its last checkpoint.

  Args:
    config: See `get_config`; it is not changed.
    workdir: Folder of checkpoints, logs and figures; or the URL of a place in a bucket,
      s3://, gs:// or az://.
    faults: What happens to nodes on purpose: lines such as "5,0/1,3,kill" (in
      step 5, counted from 0, the node of pipeline 0 and stage 1 dies before
      its instruction 3), or a file of them; see `bamboo_jax.faults.faults`.
    stop_at: Return after this many steps, without a checkpoint of the last.
    callbacks: Each is called as `callback(step, metrics)` after every committed
      step, from 1, with what `metrics.jsonl` gets. An exception ends the run.

  Raises:
    ValueError: The config does not fit together, or not the run in `workdir`.
    OSError: A file cannot be read or written.
  """
  from bamboo_jax.runtime import program_store
  from bamboo_jax.training import run

  config = _accept(config)
  program_store.use(base.find_cache("programs"))  # Compiled programs, as commands keep them.
  try:
    with tempfile.TemporaryDirectory() as folder:
      run.train_and_evaluate(
          config,
          workdir=(place := base.find_place(workdir)),
          faults=_find_faults(faults, folder),
          stop_at=stop_at,
          callbacks=callbacks,
          settles=True,
      )
  except Exception as error:
    base.drop_other_frames(error)  # The error of a loss is found in its own lines.
    if isinstance(error.__cause__, base.CallbackError):
      raise error.__cause__.__cause__ or error from None
    raise
  return summary_lib.read_result(mirror.local(place))


def plan(config: "ml_collections.ConfigDict") -> "show.PlannedRun":
  """Returns the plan of a run; it prints as the text of `bamboo plan`.

  Nothing runs on a device. Raises `ValueError` if the config does not fit
  together.
  """
  from bamboo_jax.training import run
  from bamboo_jax.training.setup import show, sizes

  config = _accept(config)
  run.use_devices(config, sizes.num_nodes(config))  # For a run that follows.
  return show.make_plan(config)


def cluster(
    config: "ml_collections.ConfigDict",
    *,
    workdir: str | os.PathLike[str],
    nodes: int | None = None,
    zones: Sequence[str] = ("a",),
    faults: str | os.PathLike[str] | Sequence[str] | None = None,
    random_kills: int | None = None,
    seed: int = 0,
) -> summary_lib.Result:
  """Trains on a cluster on this machine; each node is a process of its own.

  Shows the output of `bamboo cluster` as it comes. An interrupt has the step
  finished and saved; a second one ends all processes at once.

  Args:
    config: As for `train`, of plain values.
    workdir: As for `train`.
    nodes: Number of nodes; those the config does not need are spares. None: as
      many as it needs.
    zones: Given to the nodes in turn.
    faults: As for `train`.
    random_kills: Number of workers to kill at random times, and to replace.
    seed: Decides on `random_kills`.

  Raises:
    ValueError: The config is wrong.
    RuntimeError: The command has failed; with the last line of its output.
  """
  _accept(config)
  with tempfile.TemporaryDirectory() as folder:
    arguments = [
        f"--config={_write_config(config, pathlib.Path(folder))}",
        f"--workdir={(place := base.find_place(workdir))}",
        f"--zones={','.join(zones)}",
    ]
    given = dict(
        nodes=nodes,
        faults=_find_faults(faults, folder),
        random_kills=random_kills,
        seed=None if random_kills is None else seed,
    )
    arguments += [f"--{k}={v}" for k, v in given.items() if v is not None]
    _run_command("cluster", arguments)
  return summary_lib.read_result(mirror.local(place))


def load(workdir: str | os.PathLike[str], model: "model_lib.Model | None" = None) -> base.PyTree:
  """Returns the parameters in the last checkpoint of a run.

  Those of a `from_loss` model have the structure that its `init` returns. Of
  others it is a dict from the name of a layer to its `layer.Variables`.

  Args:
    workdir: Folder of the run; or of weights, which needs `model`.
    model: None: the one that the config of the run names.

  Raises `base.CheckpointError`, a `ValueError`, if there are no parameters, or
  they are not of this model.
  """
  from bamboo_jax.exchange import weights
  from bamboo_jax.models import from_loss, zoo
  from bamboo_jax.runtime import devices
  from bamboo_jax.training.setup import build

  devices.use_virtual_devices(_MOST_DEVICES)  # For a run that follows.
  values = pathlib.Path(workdir, "config.json")
  if model is None:
    named = json.loads(values.read_text())["model"]
    model = zoo.make_model(named["name"], **named["options"])
  is_loss = isinstance(model.layers[0], from_loss.LossLayer)
  if not model.sample and not is_loss:  # Shapes follow from the data.
    given = json.loads(values.read_text())  # Of an older version, not all options.
    config = config_lib.Config().changed(json_lib.flatten(given, leaves=base.OPTIONS))
    sample = build.make_task(config).whole.model.sample
    model = dataclasses.replace(model, sample=sample)
  read = weights.open_weights(workdir, model)
  if is_loss:
    loss: Any = model.layers[0]
    return loss.to_pytree(read(from_loss.LAYER))
  return {name: read(name) for name in model.layer_names}


def _accept(config: Any) -> config_lib.Config:
  """Returns the options of a config, checked as commands check them."""
  from bamboo_jax.training.setup import accept

  return accept.accept(config)


def _find_faults(faults: str | os.PathLike[str] | Sequence[str] | None, folder: str) -> str | None:
  """Returns the path of a file of faults; lines are written to `folder`."""
  if not faults:
    return None
  if isinstance(faults, (str, os.PathLike)):
    return os.fspath(faults)
  path = pathlib.Path(folder, "faults.csv")
  path.write_text("".join(f"{line}\n" for line in faults))
  return str(path)


def _write_config(config: Any, folder: pathlib.Path) -> pathlib.Path:
  """Writes a config as a file for `--config`; returns its path."""
  values = pprint.pformat(config.to_dict(), sort_dicts=False)
  try:
    ast.literal_eval(values)
  except (SyntaxError, ValueError) as error:
    raise ValueError(
        "The config of a cluster must be plain values (numbers, texts, lists, "
        "dicts): its processes read it from a file."
    ) from error
  path = folder / "python.py"
  base.write_atomically(path, _CONFIG_FILE.format(values=values))
  return path


def _run_command(name: str, arguments: Sequence[str]) -> None:
  """Runs a command as a child, and shows its output line by line."""
  from bamboo_jax.cluster import children

  command = [sys.executable, "-m", f"bamboo_jax.launch.{name}", *arguments]
  environment = dict(os.environ)
  root = packaged.folder("launch").parent
  if root != pathlib.Path(__file__).resolve().parent:  # A clone.
    paths = [str(root), environment.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
  child = subprocess.Popen(
      command,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      errors="replace",
      env=environment,
      start_new_session=True,  # Interrupts of a terminal come through here.
  )
  assert child.stdout is not None
  last, interrupts = "", 0
  while True:
    try:
      for line in child.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        last = line.strip() or last
      code = child.wait()
      break
    except KeyboardInterrupt:
      interrupts += 1
      child.send_signal(signal.SIGINT)
  child.stdout.close()
  if interrupts:
    raise KeyboardInterrupt
  if code:
    raise RuntimeError(f"bamboo {name} {children.describe_exit(code)}: {last}")
