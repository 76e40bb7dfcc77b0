"""A small GPT under `torch.distributed.pipelining`, 1F1B, gloo, beside runs of `bamboo ablate`.

python -m bamboo_jax.benchmarks.torch_pipeline --config=bench_peer --workdir=runs/torch

Each stage is a process on a core of its own, split as our plan is. The model is that of
`configs/bench_peer.py`, and malloc keeps freed memory, as in this project.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import types

import torch
from torch import nn
import torch.distributed as dist
from torch.distributed import pipelining
import torch.nn.functional as F

from bamboo_jax.cli import config_flag
from bamboo_jax.net import addresses
from bamboo_jax.runtime import allocator
from bamboo_jax.training.setup import accept, build


class Block(nn.Module):
  """A transformer block: attention and MLP."""

  def __init__(self, width: int, num_heads: int) -> None:
    super().__init__()
    self.num_heads = num_heads
    self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
    self.qkv = nn.Linear(width, 3 * width, bias=False)
    self.out = nn.Linear(width, width, bias=False)
    self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

  def attention(self, x: torch.Tensor) -> torch.Tensor:
    b, t, d = x.shape
    qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.num_heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + self.out(mixed.transpose(1, 2).reshape(b, t, d))

  def mlp(self, x: torch.Tensor) -> torch.Tensor:
    hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
    return x + self.down(hidden)


class Stage(nn.Module):
  """Layers `first` to `last` of: embedding, two halves per block, head."""

  def __init__(self, first: int, last: int, a: types.SimpleNamespace) -> None:
    super().__init__()
    self.layers = range(first, last)
    self.num_blocks = a.num_blocks
    if first == 0:
      self.token = nn.Embedding(a.vocab_size, a.width)
      self.position = nn.Embedding(a.sequence_length, a.width)
    used = {(i - 1) // 2 for i in self.layers if 0 < i <= 2 * a.num_blocks}
    self.blocks = nn.ModuleDict({str(b): Block(a.width, a.num_heads) for b in sorted(used)})
    if last == 2 * a.num_blocks + 2:
      self.norm = nn.LayerNorm(a.width)
      self.head = nn.Linear(a.width, a.vocab_size, bias=False)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    for i in self.layers:
      if i == 0:
        x = self.token(x) + self.position(torch.arange(x.shape[1]))
      elif i <= 2 * self.num_blocks:
        block = self.blocks[str((i - 1) // 2)]
        x = block.attention(x) if i % 2 else block.mlp(x)
      else:
        x = self.head(self.norm(x))
    return x


def train(a: types.SimpleNamespace) -> None:
  """Trains one stage; the last one writes `metrics.jsonl`."""
  os.sched_setaffinity(0, {a.core})
  allocator.keep_freed_memory()
  torch.set_num_threads(1)
  torch.manual_seed(0)
  world = len(a.bounds) - 1
  address = f"tcp://127.0.0.1:{a.port}"
  dist.init_process_group("gloo", init_method=address, rank=a.rank, world_size=world)
  shape = (a.batch_size, a.sequence_length)
  inputs = torch.randint(0, a.vocab_size, shape)
  targets = torch.randint(0, a.vocab_size, shape)
  module = Stage(*a.bounds[a.rank : a.rank + 2], a)
  stage = pipelining.PipelineStage(module, a.rank, world, torch.device("cpu"))
  loss_fn = lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten())
  schedule = pipelining.Schedule1F1B(stage, a.num_microbatches, loss_fn=loss_fn)
  optimizer = torch.optim.AdamW(module.parameters(), lr=a.learning_rate)
  is_last = a.rank == world - 1
  with contextlib.ExitStack() as stack:
    if is_last:
      log = stack.enter_context(open(pathlib.Path(a.workdir, "metrics.jsonl"), "w", buffering=1))
    for step in range(1, a.num_steps + 1):
      start, losses = time.perf_counter(), []
      optimizer.zero_grad()
      last = dict(target=targets, losses=losses) if is_last else {}
      schedule.step(*([inputs] if a.rank == 0 else []), **last)
      optimizer.step()
      dist.barrier()
      if is_last:
        loss, step_ms = torch.stack(losses).mean().item(), 1e3 * (time.perf_counter() - start)
        log.write(json.dumps(dict(step=step, loss=loss, step_ms=step_ms)) + "\n")
  dist.destroy_process_group()


def main() -> None:
  """Starts a process on a core of its own for each stage, and waits for all."""
  if sys.argv[1].startswith("{"):
    train(types.SimpleNamespace(**json.loads(sys.argv[1])))
    return
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  for name, default in (("config", "bench_peer"), ("workdir", "runs/torch"), ("num_steps", "1000")):
    parser.add_argument(f"--{name}", default=default)
  given = parser.parse_args()
  config = accept.accept(config_flag.load(given.config))
  pipeline, cores = config.pipeline, sorted(os.sched_getaffinity(0))
  if pipeline.num_pipelines != 1 or pipeline.num_stages > len(cores):
    raise SystemExit(
        f"error: --config={given.config} must have one pipeline and a stage for each of "
        f"{len(cores)} cores, got {pipeline.num_pipelines} x {pipeline.num_stages}."
    )
  plan = build.make_plan(config, build.make_profile(config, build.make_task(config)))
  sizes = ("num_blocks", "width", "num_heads", "sequence_length", "vocab_size")
  facts = {name: config.model.options[name] for name in sizes} | dict(
      workdir=given.workdir,
      num_steps=int(given.num_steps),
      port=addresses.free_port(),
      batch_size=pipeline.num_microbatches * pipeline.microbatch_size,
      num_microbatches=pipeline.num_microbatches,
      bounds=plan.partition.bounds,
      learning_rate=config.optimizer.learning_rate,
  )
  pathlib.Path(given.workdir).mkdir(parents=True, exist_ok=True)
  stages = [
      subprocess.Popen(
          [sys.executable, "-m", __spec__.name, json.dumps(facts | dict(rank=rank, core=core))]
      )
      for rank, core in enumerate(cores[: pipeline.num_stages])
  ]
  if any([stage.wait() for stage in stages]):
    raise SystemExit("error: a stage failed.")


if __name__ == "__main__":
  main()
