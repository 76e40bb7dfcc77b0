"""Draws runs with features at random, for a cluster and for one process.

python -m tests.feature_pairs --seed=1 --count=60
python -m tests.feature_pairs --seed=1 --first=17 --count=1 --folder=/tmp/pairs

Each pair is a run through two deaths: once as a cluster of processes, once in
one process. Both must end with the same bits, or one line must refuse the pair
before anything starts. Prints a row of a table for each, and a summary. The
exit code is 1 if a pair differs or fails. Runs and logs are in `--folder`.
"""

import argparse
from collections.abc import Mapping
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

from tests import compilation, forks

_ROOT = pathlib.Path(__file__).parents[1]
_LIMIT_SECS = 600.0  # Compiling takes most on a busy machine.
_ALWAYS = (
    "--config=copies",
    "--config.pipeline.microbatch_size=2",
    "--config.optimizer.learning_rate=0.01",
    "--config.cluster.gather_secs=60",
    "--config.metrics.plots=False",
)
_NUM_STEPS, _RESUMED = 6, 3  # A run that is resumed stops there first.
_PAPER_MODELS = "bamboo_jax.reproductions.paper_models"
_ALEXNET = f"{_PAPER_MODELS}.convnet:make_alexnet"
_GNMT = f"{_PAPER_MODELS}.gnmt:make_gnmt"
_TEXT = {"sequence_length": 16, "vocab_size": 256}
_BLOCKS = {**_TEXT, "variant": "tiny", "num_blocks": 2, "width": 16}
_IMAGES = {"variant": "tiny", "image_size": 16}

# Options of each model, and whether it is of "text", "images" or other data.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("text", {**_BLOCKS, "num_heads": 2}),
    "llama": ("text", _BLOCKS | {"num_heads": 2, "num_kv_heads": 1}),
    "qwen": ("text", _BLOCKS | {"num_heads": 2, "num_kv_heads": 1}),
    "bert": ("text", _BLOCKS | {"num_heads": 2, "vocab_size": 260}),
    _GNMT: ("pairs", _TEXT | {"variant": "tiny"}),
    f"{_PAPER_MODELS}.resnet:make_resnet": ("images", _IMAGES),
    _ALEXNET: ("images", {"variant": "tiny"}),
    "tests/mlp_bn.py:make_mlp_bn": ("own", {**_TEXT, "num_blocks": 2}),
}
# Overrides by the name of a source; "{folder}" has files of the pair.
_TEXTS: Mapping[str, Mapping[str, Any]] = {
    "synthetic": {"data.name": "synthetic"},
    "files": {"data.name": "docs/guides/*.md"},
    "mixture": {"data.name": "0.7 docs/guides 0.3 docs/concepts"},
    "records": {
        "data.name": "{folder}/pairs.jsonl",
        "data.options.field": "prompt,completion",
        "data.options.packing": "whole",
    },
}
_TRANSLATION = {
    "data.name": f"{_PAPER_MODELS}.pairs:make_translation",
    "data.options.heldout_fraction": 0.3,
}
SOURCES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "text": _TEXTS,
    "own": {name: _TEXTS[name] for name in ("synthetic", "files")},
    "pairs": {"translation": _TRANSLATION},
    "images": {"stripes": {"data.name": f"{_PAPER_MODELS}.stripes:make_stripes"}},
}
_RECORDS = "".join(
    json.dumps({"prompt": f"{i}+1", "completion": f"={i + 1}"}) + "\n" for i in range(4000)
)
_LORA = ("gpt2", "llama", "qwen")
# Models with an option, and its values.
_MODEL_OPTIONS: Mapping[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "dropout_rate": (("gpt2", "bert", _GNMT, _ALEXNET), (0.0, 0.2)),
    "tied": ((*_LORA, _GNMT), (True, False)),
    "documents": ((*_LORA, "bert"), (None, None, True)),
    "dtype": ((*_LORA, "bert"), ("float32", "float32", "bfloat16")),
}
# Values of options by their names; those that stand twice are drawn more often.
OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "pipeline.executor": ("rows", "rows", "rows", "spmd"),
    "pipeline.layout": ("depth", "depth", "templates", "grid"),
    "pipeline.schedule": ("1f1b", "gpipe"),
    "pipeline.remat": ("full", "dots", "inputs"),
    "node.mesh.data": (1, 1, 1, 1, 2),
    "redundancy.mode": ("none", "lazy", "bubble", "budget", "eager"),
    "redundancy.refresh": ("gradient", "state"),
    "redundancy.slots": ("device", "device", "host"),
    "redundancy.spares": (0, 0, 1),
    "redundancy.check_every_steps": (0, 1, 3),
    "recovery.reroute": (True, True, False),
    "recovery.drop": (False, False, True),
    "recovery.reconfigure": (True, True, False),
    "recovery.checkpoint": (True, True, False),
    "recovery.fold": (True, True, False),
    "recovery.slow": ("report", "report", "report", "remove", "remove"),
    "optimizer.name": ("adamw", "adamw", "lion"),
    "optimizer.clip_norm": (None, 0.1, 1.0),
    "optimizer.decay": ("all", "matrices"),
    "evaluate.every_steps": (0, 2),
    "checkpoint.every_steps": (0, 2),
}
SIZES = ((1, 2), (2, 2), (2, 2), (2, 1), (1, 3), (3, 1))  # Pipelines, stages.
_PHASES = ("compute", "ties", "reduce", "norm", "refresh", "vote", "apply")
_KINDS = ("kill", "kill", "node")


class Pair(NamedTuple):
  """A run: overrides by option, lines of faults, and whether it is resumed."""

  number: int
  options: Mapping[str, Any]
  faults: tuple[str, ...]
  resumes: bool

  def __str__(self) -> str:
    words = [f"{name}={value}" for name, value in self.options.items()]
    return " ".join([*words, *self.faults, f"resumes={self.resumes}"])

  def with_joins(self) -> "Pair":
    """Returns the pair with a node that joins after each death."""
    deaths = [line for line in self.faults if not line.endswith("join")]
    joins = [f"{int(line.split(',')[0]) + 1},,,join" for line in deaths]
    return self._replace(faults=(*deaths, *joins))


class Outcome(NamedTuple):
  """How a run ended: with the hash of its state, or with a line."""

  status: int
  text: str
  has_started: bool


def draw(seed: int, number: int) -> Pair:
  """Returns a pair of `seed`; the same at every call."""
  rng = random.Random(f"feature pairs {seed} {number}")
  name = rng.choice([*MODELS, *_LORA])
  kind, shape = MODELS[name]
  pipelines, stages = rng.choice(SIZES)
  options: dict[str, Any] = {"model.name": name}
  model = dict(shape)
  if name in _LORA and rng.random() < 0.6:
    model["lora_rank"] = 2
  for key, (names, values) in _MODEL_OPTIONS.items():
    if name in names:
      model[key] = rng.choice(values)
  source = rng.choice([*SOURCES[kind]])
  if model.get("documents") and source == "synthetic":
    source = "files"
  options |= {f"model.options.{key}": value for key, value in model.items()}
  options |= SOURCES[kind][source]
  options["pipeline.num_pipelines"] = pipelines
  options["pipeline.num_stages"] = stages
  options["pipeline.num_microbatches"] = 4 if pipelines == 1 else 2
  options["pipeline.num_shares"] = rng.choice([None, 2 * pipelines])
  options |= {key: rng.choice(values) for key, values in OPTIONS.items()}
  if stages == 1:
    options["redundancy.mode"] = "none"
  elif options["redundancy.mode"] == "none":  # Two deaths may take all copies.
    options["recovery.checkpoint"] = True
  if options["pipeline.executor"] == "spmd":  # Most would be refused.
    options |= {"pipeline.layout": "depth", "pipeline.num_shares": None}
    options |= {"recovery.slow": "report", "node.mesh.data": 1, "pipeline.schedule": "1f1b"}
  # What a drop leaves out depends on when others learn of the death.
  phases = _PHASES[:2] if options["recovery.drop"] else _PHASES
  faults = []
  for step in (1, 4):
    place = f"{rng.randrange(pipelines)}/{rng.randrange(stages)}"
    at = rng.choice([rng.choice(phases), rng.randrange(6)])
    faults.append(f"{step},{place},{at},{rng.choice(_KINDS)}")
    # With two nodes one must join before the other dies.
    if rng.random() < 0.2 or pipelines * stages < 3:
      faults.append(f"{step + 1},,,join")
  return Pair(number, options, tuple(faults), rng.random() < 0.3)


def run(pair: Pair, command: str, folder: pathlib.Path) -> Outcome:
  """Runs a pair by `bamboo train` or `bamboo cluster`."""
  workdir = folder / command
  shutil.rmtree(workdir, ignore_errors=True)
  path = folder / f"{command}.csv"
  given = {"cwd": _ROOT, "env": {**os.environ, "JAX_PLATFORMS": "cpu"}}
  ends = (_RESUMED, _NUM_STEPS) if pair.resumes else (_NUM_STEPS,)
  flags = [
      f"--config.{name}={value}".replace("{folder}", f"{folder}")
      for name, value in pair.options.items()
  ]
  first = 0
  for end in ends:
    steps = range(first, end)
    due = [line for line in pair.faults if int(line.split(",")[0]) in steps]
    path.write_text("\n".join(["step,node,at,kind", *due]))
    arguments = [
        *("-m", f"bamboo_jax.launch.{command}", *_ALWAYS),
        *(f"--config.num_steps={end}", *flags),
        *(f"--workdir={workdir}", *[f"--faults={path}"][: len(due)]),
    ]
    try:
      ended = forks.run(arguments, timeout_secs=_LIMIT_SECS, **given)
    except subprocess.TimeoutExpired:
      return Outcome(124, f"not done after {_LIMIT_SECS:.0f} s", True)
    with open(folder / f"{command}.log", "a") as log:
      log.write(ended.stdout + ended.stderr)
    if ended.returncode:
      lines = ended.stderr.splitlines() or [""]
      has_started = (workdir / "metrics.jsonl").exists()
      return Outcome(ended.returncode, lines[-1], has_started)
    first = end
  summary = json.loads((workdir / "summary.json").read_text())
  return Outcome(0, summary["state_sha256"], True)


def judge(local: Outcome, cluster: Outcome) -> str:
  """Returns "same", "refused", "ended", "differs" or "failed"."""
  both = (local, cluster)
  if any(o.status and not o.text.startswith("error: ") for o in both):
    return "failed"
  if local.status and cluster.status:
    has_started = local.has_started or cluster.has_started
    return "ended" if has_started else "refused"
  return "same" if local.text == cluster.text else "differs"


def main() -> None:
  """Runs the pairs, one after the other."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--first", type=int, default=0)
  parser.add_argument("--count", type=int, default=60)
  parser.add_argument("--folder", default="build/feature_pairs")
  given = parser.parse_args()
  compilation.choose(is_quick=True)
  counts: dict[str, int] = {}
  for number in range(given.first, given.first + given.count):
    pair = draw(given.seed, number)
    folder = pathlib.Path(given.folder, f"{number}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pairs.jsonl").write_text(_RECORDS)
    local = run(pair, "train", folder)
    if "too few" in local.text:  # A cluster would wait for others.
      pair = pair.with_joins()
      local = run(pair, "train", folder)
    cluster = run(pair, "cluster", folder)
    found = judge(local, cluster)
    counts[found] = counts.get(found, 0) + 1
    said = f"train: {local.text} cluster: {cluster.text}"
    said = local.text[:12] if found == "same" else said
    print(f"{number} {found} {said}\n   {pair}", flush=True)
  print(" ".join(f"{name}={n}" for name, n in sorted(counts.items())))
  sys.exit(bool(counts.keys() & {"differs", "failed"}))


if __name__ == "__main__":
  main()
