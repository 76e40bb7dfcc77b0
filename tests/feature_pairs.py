"""Draws runs with features at random; each runs in a cluster and in one process.

python -m tests.feature_pairs --seed=1 --count=60
python -m tests.feature_pairs --seed=1 --first=17 --count=1 --keep=/tmp/pairs

Each pair is a run through two deaths: once as a cluster of processes, once in
one process. Both must end with the same bits, or one line must refuse the pair
before anything starts. Prints a row of a table for each, and a summary. The
exit code is 1 if a pair differs or fails. With `--keep` the folders of runs are
kept there.
"""

import argparse
from collections.abc import Iterator, Mapping
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

_ROOT = pathlib.Path(__file__).parents[1]
_LIMIT_SECS = 240.0
_NUM_STEPS, _RESUMED = 6, 3  # A run that is resumed stops there first.
_TEXT = {"sequence_length": 16, "vocab_size": 256}
_BLOCKS = {**_TEXT, "variant": "tiny", "num_blocks": 4, "width": 16}
_IMAGES = {"variant": "tiny", "image_size": 16}

# Options of each model, and whether it is of "text", "images" or other data.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("text", {**_BLOCKS, "num_heads": 2}),
    "llama": ("text", _BLOCKS | {"num_heads": 2, "num_kv_heads": 1}),
    "qwen": ("text", _BLOCKS | {"num_heads": 2, "num_kv_heads": 1}),
    "bert": ("text", _BLOCKS | {"num_heads": 2, "vocab_size": 260}),
    "gnmt": ("pairs", _TEXT | {"variant": "tiny"}),
    "resnet": ("images", _IMAGES),
    "alexnet": ("images", {"variant": "tiny"}),
    "tests/mlp_bn.py:make_mlp_bn": ("own", {**_TEXT, "num_blocks": 4}),
}
# Overrides by the name of a source; "{folder}" has files of the pair.
_TEXTS: Mapping[str, Mapping[str, Any]] = {
    "synthetic": {"data.name": "synthetic"},
    "files": {"data.name": f"{_ROOT}/docs/guides/*.md"},
    "mixture": {
        "data.name": f"0.7 {_ROOT}/docs/guides 0.3 {_ROOT}/docs/concepts"
    },
    "records": {
        "data.name": "{folder}/pairs.jsonl",
        "data.options.field": "prompt,completion",
        "data.options.packing": "whole",
    },
}
SOURCES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "text": _TEXTS,
    "own": {name: _TEXTS[name] for name in ("synthetic", "files")},
    "pairs": {"translation": {"data.name": "translation"}},
    "images": {"stripes": {"data.name": "stripes"}},
}
_LORA = ("gpt2", "llama", "qwen")
_DROPOUT = ("gpt2", "bert", "gnmt", "alexnet")
_TIED = ("gpt2", "llama", "qwen", "gnmt")
_DOCUMENTS = ("gpt2", "llama", "qwen", "bert")
# Values of options by their names; those that stand twice are drawn more often.
OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "pipeline.executor": ("rows", "rows", "rows", "spmd"),
    "pipeline.layout": ("depth", "depth", "templates", "grid"),
    "pipeline.schedule": ("1f1b", "gpipe"),
    "pipeline.unit": ("block", "layer", "stage"),
    "pipeline.remat": ("full", "dots", "inputs"),
    "node.mesh.data": (1, 1, 1, 1, 2),
    "redundancy.mode": ("none", "lazy", "bubble", "budget", "eager"),
    "redundancy.refresh": ("gradient", "state"),
    "redundancy.slots": ("device", "device", "host"),
    "redundancy.spares": (0, 0, 1),
    "redundancy.rereplicate": ("at_commit", "at_repair"),
    "redundancy.check_every_steps": (0, 1, 3),
    "recovery.reroute": (True, True, False),
    "recovery.drop": (False, False, True),
    "recovery.reconfigure": (True, True, False),
    "recovery.checkpoint": (True, True, False),
    "recovery.fold": (True, True, False),
    "recovery.preconnect": (True, False),
    "recovery.slow": ("report", "report", "deal", "layers"),
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

  def flags(self, folder: str = "{folder}") -> list[str]:
    """Returns the overrides as flags."""
    return [
        f"--config.{name}={value}".replace("{folder}", folder)
        for name, value in self.options.items()
    ]


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
  sources = SOURCES[kind]
  pipelines, stages = rng.choice(SIZES)
  options: dict[str, Any] = {"model.name": name.replace("tests", f"{_ROOT}/tests")}
  model = dict(shape)
  if name in _LORA and rng.random() < 0.6:
    model["lora_rank"] = 2
  if name in _DROPOUT:
    model["dropout_rate"] = rng.choice([0.0, 0.2])
  if name in _TIED:
    model["tied"] = rng.choice([True, False])
  if name in _DOCUMENTS:
    model["documents"] = rng.choice([None, None, True])
    model["dtype"] = rng.choice(["float32", "float32", "bfloat16"])
  source = rng.choice([*sources])
  if model.get("documents") and source == "synthetic":
    source = "files"
  options |= {f"model.options.{key}": value for key, value in model.items()}
  options |= sources[source]
  options |= {
      "pipeline.num_pipelines": pipelines,
      "pipeline.num_stages": stages,
      "pipeline.num_microbatches": 4 if pipelines == 1 else 2,
      "pipeline.num_shares": rng.choice([None, 2 * pipelines]),
  }
  options |= {key: rng.choice(values) for key, values in OPTIONS.items()}
  if stages == 1:
    options["redundancy.mode"] = "none"
  if options["pipeline.executor"] == "spmd":  # Most would be refused.
    options |= {"pipeline.layout": "depth", "pipeline.num_shares": None}
    options |= {"recovery.slow": "report", "node.mesh.data": 1}
  # What a drop leaves out depends on when others learn of the death.
  phases = _PHASES[:2] if options["recovery.drop"] else _PHASES
  faults = []
  for step in (1, 4):
    place = f"{rng.randrange(pipelines)}/{rng.randrange(stages)}"
    at = rng.choice([rng.choice(phases), rng.randrange(6)])
    faults.append(f"{step},{place},{at},{rng.choice(_KINDS)}")
    if rng.random() < 0.5:
      faults.append(f"{step + 1},,,join")
  return Pair(number, options, tuple(faults), rng.random() < 0.3)


def run(pair: Pair, command: str, folder: pathlib.Path) -> Outcome:
  """Runs a pair by `bamboo train` or `bamboo cluster`."""
  workdir = folder / command
  path = folder / f"{command}.csv"
  ends = (_RESUMED, _NUM_STEPS) if pair.resumes else (_NUM_STEPS,)
  ended = Outcome(0, "", False)
  for end in ends:
    faults = [line for line in pair.faults if int(line.split(",")[0]) < end]
    if end != ends[0]:
      faults = [l for l in pair.faults if int(l.split(",")[0]) >= _RESUMED]
    path.write_text("\n".join(["step,node,at,kind", *faults]))
    ended = _call([
        *(sys.executable, "-m", f"bamboo_jax.launch.{command}"),
        *("--config=sweep_faults", f"--config.num_steps={end}"),
        "--config.optimizer.schedule=constant",
        "--config.metrics.plots=False",
        *pair.flags(str(folder)),
        *(f"--workdir={workdir}", f"--faults={path}"),
    ], folder / f"{command}.log", workdir)
    if ended.status:
      break
  return ended


def _call(
    command: list[str], log: pathlib.Path, workdir: pathlib.Path
) -> Outcome:
  environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
  with open(log, "a") as file:
    process = subprocess.Popen(command, stdout=file, stderr=file, env=environ)
    try:
      status = process.wait(_LIMIT_SECS)
    except subprocess.TimeoutExpired:
      for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
      process.wait()
      return Outcome(124, f"not done after {_LIMIT_SECS:.0f} s", True)
  lines = [l for l in log.read_text().splitlines() if l.strip()]
  text = lines[-1] if lines else ""
  if not status:
    summary = json.loads((workdir / "summary.json").read_text())
    text = summary["state_sha256"]
  return Outcome(status, text, (workdir / "metrics.jsonl").exists())


def judge(local: Outcome, cluster: Outcome) -> str:
  """Returns "same", "refused", "ended", "differs" or "failed"."""
  both = (local, cluster)
  if not (local.status or cluster.status):
    return "same" if local.text == cluster.text else "differs"
  if any("Traceback" in o.text or not o.text.startswith("error: ") for o in both if o.status):
    return "failed"
  if all(o.status and not o.has_started for o in both):
    return "refused"
  return "ended" if all(o.status for o in both) else "differs"


@contextlib.contextmanager
def _folder(keep: str | None, number: int) -> Iterator[pathlib.Path]:
  if keep is None:
    with tempfile.TemporaryDirectory() as name:
      yield pathlib.Path(name)
  else:
    path = pathlib.Path(keep, f"{number}")
    path.mkdir(parents=True)
    yield path


def _write_records(folder: pathlib.Path) -> None:
  rows = [{"prompt": f"{i}+1", "completion": f"={i + 1}"} for i in range(400)]
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  (folder / "pairs.jsonl").write_text(lines)


def main() -> None:
  """Runs the pairs, one after the other."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--first", type=int, default=0)
  parser.add_argument("--count", type=int, default=60)
  parser.add_argument("--keep")
  given = parser.parse_args()
  counts: dict[str, int] = {}
  for number in range(given.first, given.first + given.count):
    pair = draw(given.seed, number)
    began = time.monotonic()
    with _folder(given.keep, number) as folder:
      _write_records(folder)
      local, cluster = (run(pair, c, folder) for c in ("train", "cluster"))
    found = judge(local, cluster)
    counts[found] = counts.get(found, 0) + 1
    said = local.text[:12] if found == "same" else f"{local.text} | {cluster.text}"
    secs = time.monotonic() - began
    print(f"{number} {found} {secs:.0f}s {said}", flush=True)
    print("   ", " ".join(pair.flags()), "faults=" + ";".join(pair.faults), f"resumes={pair.resumes}", flush=True)
  print(" ".join(f"{name}={n}" for name, n in sorted(counts.items())))
  sys.exit(bool(counts.keys() & {"differs", "failed"}))


if __name__ == "__main__":
  main()
