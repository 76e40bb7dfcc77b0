"""Samples of a task whose best loss is known: a random Markov chain.

Each token has a few successors with fixed random probabilities. The least loss
of any model is the entropy rate of the chain, so a trained model can be judged
without another one.

Dimension key:

  S: samples
  L: sequence length, tokens
  V: vocabulary
  B: branches, successors of a token
"""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np

from bamboo_jax.data import draws, samples

_BRANCHING = 4
_ONE = 1 << 32  # Probabilities are multiples of 1 / _ONE: exact everywhere.
_TRAIN, _HELDOUT, _CHAIN = range(3)  # Streams of random bits.


@dataclasses.dataclass(frozen=True)
class Chain:
  """Each of `vocab_size` tokens has `branching` possible successors."""

  vocab_size: int
  branching: int
  seed: int

  @functools.cached_property
  def transitions_VV(self) -> np.ndarray:
    """Probability of the next token (column) after a token (row), float64."""
    next_VB, upper_VB = self.table
    parts_VB = np.diff(upper_VB, axis=1, prepend=0) / _ONE
    transitions_VV = np.zeros((self.vocab_size, self.vocab_size))
    np.put_along_axis(transitions_VV, next_VB, parts_VB, axis=1)
    return transitions_VV

  @functools.cached_property
  def stationary_V(self) -> np.ndarray:
    """Stationary probability of each token, float64 [V]."""
    # Unique, because the chain can always go to the next number (`table`).
    equations_VV = self.transitions_VV.T - np.eye(self.vocab_size)
    equations_VV[-1] = 1.0
    ones_V = np.zeros(self.vocab_size)
    ones_V[-1] = 1.0
    return np.linalg.solve(equations_VV, ones_V)

  @functools.cached_property
  def best_loss(self) -> float:
    """Entropy rate in nats per token: the least loss a model can expect."""
    p_VV = self.transitions_VV
    logs_VV = np.log(p_VV, where=p_VV > 0, out=np.zeros_like(p_VV))
    return float(-self.stationary_V @ (p_VV * logs_VV).sum(axis=1))

  @functools.cached_property
  def table(self) -> tuple[np.ndarray, np.ndarray]:
    """Successors of each token, and their cumulative probabilities."""
    size, branching = self.vocab_size, self.branching
    count = size * (size + branching)
    bits = draws.raw_bits(self.seed, 0, count=count, stream=_CHAIN)
    keys_VV = np.maximum(bits[: size * size].reshape(size, size), 1)
    tokens_V = np.arange(size)
    keys_VV[tokens_V, (tokens_V + 1) % size] = 0  # The first branch.
    next_VB = np.argsort(keys_VV, axis=1, kind="stable")[:, :branching]
    upper_VB = (bits[size * size :] >> np.uint64(32)).astype(np.int64)
    upper_VB = np.maximum(upper_VB.reshape(size, branching), 1)
    upper_VB[:, -1] = _ONE
    return next_VB, np.sort(upper_VB, axis=1)

  def walk(
      self, length: int, stream: int, indices: Sequence[int], *, seed: int
  ) -> dict[str, np.ndarray]:
    """Returns walks `indices` as "inputs" and "targets", int32 [S, L] each."""
    next_VB, upper_VB = self.table
    count = length + 1
    bits_SL = draws.bits_of_samples(seed, indices, count=count, stream=stream)
    bits_SL = (bits_SL >> np.uint64(32)).astype(np.int64)
    upper_V = np.round(np.cumsum(self.stationary_V) * _ONE).astype(np.int64)
    walks_SL = np.empty(bits_SL.shape, np.int32)
    walks_SL[:, 0] = np.searchsorted(upper_V[:-1], bits_SL[:, 0], side="right")
    for place in range(1, count):
      tokens_S = walks_SL[:, place - 1]
      branches_S = (bits_SL[:, place, None] >= upper_VB[tokens_S]).sum(axis=1)
      walks_SL[:, place] = next_VB[tokens_S, branches_S]
    return {"inputs": walks_SL[:, :-1].copy(), "targets": walks_SL[:, 1:].copy()}


def make_walks(
    *,
    sequence_length: int,
    vocab_size: int = 64,
    branching: int | None = None,
    chain_seed: int = 0,
    num_heldout: int = 1024,
) -> samples.Source:
  """Returns walks of a chain, each from its stationary state; none repeats.

  `chain_seed` selects the chain, the seed of a run the walks. `branching` is 4
  by default, or `vocab_size` if that is less.
  """
  if branching is None:
    branching = min(_BRANCHING, max(vocab_size, 1))
  options = {
      "sequence_length": sequence_length,
      "vocab_size": vocab_size,
      "branching": branching,
      "chain_seed": chain_seed,
      "num_heldout": num_heldout,
  }
  samples.check_ranges(
      options,
      least={"vocab_size": 2, "chain_seed": 0, "num_heldout": 0},
      most={"branching": vocab_size, "chain_seed": draws.MAX_SEED},
  )
  chain = Chain(vocab_size, branching, chain_seed)
  walk = functools.partial(chain.walk, sequence_length)
  return samples.Source(
      fingerprint={"source": "synthetic", **options},
      vocab_size=vocab_size,
      unit="tokens",
      num_heldout=num_heldout,
      batch=functools.partial(walk, _TRAIN),
      heldout_batch=functools.partial(walk, _HELDOUT, seed=chain_seed),
  )
