"""One stage of a small GPT under `torch.distributed.pipelining`, 1F1B, gloo.

Started by `bench.rivals`, with all numbers in a JSON argument. Each line of
input runs a training step and is answered by "answer {}"; the end of input ends
it. The model is that of `configs/bench_peer.py`, and malloc keeps freed memory,
as in this project.
"""

import json
import os
import sys
import types

import torch
from torch import nn
import torch.distributed as dist
from torch.distributed import pipelining
import torch.nn.functional as F

from bamboo_jax.runtime import allocator


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
    """Returns the first half of the block."""
    b, t, d = x.shape
    qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.num_heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + self.out(mixed.transpose(1, 2).reshape(b, t, d))

  def mlp(self, x: torch.Tensor) -> torch.Tensor:
    """Returns the second half of the block."""
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
    """Returns the output of the stage; logits if it is the last."""
    for i in self.layers:
      if i == 0:
        x = self.token(x) + self.position(torch.arange(x.shape[1]))
      elif i <= 2 * self.num_blocks:
        block = self.blocks[str((i - 1) // 2)]
        x = block.attention(x) if i % 2 else block.mlp(x)
      else:
        x = self.head(self.norm(x))
    return x


def main() -> None:
  """Runs steps until the input ends."""
  a = types.SimpleNamespace(**json.loads(sys.argv[1]))
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
  print("answer {}", flush=True)
  for _ in sys.stdin:
    optimizer.zero_grad()
    losses = []
    last = a.rank == world - 1
    schedule.step(
        *([inputs] if a.rank == 0 else []), **(dict(target=targets, losses=losses) if last else {})
    )
    optimizer.step()
    loss = {"loss": torch.stack(losses).mean().item()} if last else {}
    print(f"answer {json.dumps(loss)}", flush=True)
  dist.destroy_process_group()


if __name__ == "__main__":
  main()
