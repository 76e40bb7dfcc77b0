"""The files of a checkpoint that many nodes write; called in a thread.

What goes wrong is told and not raised: others have to hear of it.
"""

from collections.abc import Mapping
import pathlib
import shutil
from typing import Any

import numpy as np

from bamboo_jax.checkpoint import directory
from bamboo_jax.checkpoint import folder as checkpoint_folder
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.checkpoint import orbax_item
from bamboo_jax.checkpoint import parts


def path_of(folder: checkpoint_folder.Folder, save: parts.Save) -> pathlib.Path:
  """Returns where the parts of a save are put together."""
  return folder.name_unfinished(save.step, save.attempt)


def write_part(
    folder: checkpoint_folder.Folder,
    save: parts.Save,
    layers: Mapping[str, Mapping[str, np.ndarray]],
    *,
    node: int,
) -> parts.Report:
  """Writes the part of a node; says how that went.

  Args:
    folder: Of the checkpoints.
    save: The checkpoint.
    layers: Arrays of each layer by name.
    node: Number of the node.
  """
  path, item = path_of(folder, save), f"node{node}"
  part, error = None, ""
  try:
    folder.check_space(layers)
    path.mkdir(exist_ok=True)
    shutil.rmtree(path / item, ignore_errors=True)  # Of a try before.
    part = directory.write_part(path, item, layers)
  except (OSError, ValueError) as e:
    error = f"node {node}: {orbax_item.describe_error(e)}"
  return parts.Report(save.step, save.view, part, error)


def finish(
    folder: checkpoint_folder.Folder,
    save: parts.Save,
    whole: manifest_lib.Part,
    *,
    meta: Mapping[str, Any],
) -> tuple[parts.Save, str]:
  """Makes a checkpoint of all parts, and removes old ones.

  Args:
    folder: Of the checkpoints.
    save: The checkpoint.
    whole: What all nodes have written.
    meta: What the run says of itself.

  Returns:
    The save, and what went wrong; empty if nothing did.
  """
  path = path_of(folder, save)
  try:
    problem = manifest_lib.find_problem(path, whole.files)
    if problem:
      return save, f"{problem}; all nodes need a folder that they share"
    meta = {**meta, "view": save.view}
    manifest_lib.write_manifest(path, step=save.step, meta=meta, part=whole)
    folder.finish(path, save.step)
  except OSError as error:
    return save, orbax_item.describe_error(error)
  return save, ""
