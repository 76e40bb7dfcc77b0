"""Cross-entropy over a large vocabulary, fused with the head of the model.

One array of the size of the logits is kept: `spread_TV`, softmax minus target,
times the sum of exponentials of its row. It is the gradient of the logits up to
a factor per row, which by linearity moves into the much smaller arrays of the
backward products. So that pass reads the large array twice and writes none.

To save memory, logits can be computed for `chunk` entries of the vocabulary at
a time, and again in the backward pass; then only the weight and its gradient
have a side of V.

Dimension key:

  T: tokens of the microbatch
  D: model width
  V: vocabulary
  C: entries of a chunk
  A, B: the sides of a product
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models.text import dense

Array = jax.Array
Kept = tuple[Array, Array, Array, Array]


def token_loss(
    h_TD: Array,
    weight: Array,
    target_T: Array,
    *,
    vocab_first: bool,
    chunk: int | None = None,
    num_tokens: int | None = None,
) -> layer_lib.Loss:
  """Returns the cross-entropy of the targets given a projection of `h_TD`.

  Args:
    h_TD: Any leading dimensions; its dtype is that of the products.
    weight: [V, D], as an embedding, if `vocab_first`, else [D, V] (faster).
      `weight`, softmax and loss are float32.
    target_T: Integers; negative targets are ignored.
    chunk: Vocabulary entries per chunk; None: all.
    num_tokens: Entries of the vocabulary that count; None: all. The others
      have no probability, and no gradient.
  """
  h_TD = h_TD.reshape(-1, h_TD.shape[-1])
  target_T = target_T.reshape(-1)
  counts_T = target_T >= 0
  given = (h_TD, weight, jnp.maximum(target_T, 0))
  size = weight.shape[0 if vocab_first else 1]
  num_tokens = None if num_tokens == size else num_tokens
  if chunk is None or chunk >= size:
    losses_T = _losses(vocab_first, num_tokens, *given)
  else:
    chunks = _Chunks(vocab_first, chunk, num_tokens)
    losses_T = _chunked_losses(chunks, *given)
  return layer_lib.sum_losses(losses_T, counts_T)


def _multiply(x_TA: Array, weight: Array, *, transposed: bool) -> Array:
  """Returns the product with a weight [A, B], or [B, A] if `transposed`, float32 [T, B]."""
  return jnp.einsum(
      "ta,ba->tb" if transposed else "ta,ab->tb",
      x_TA,
      weight.astype(x_TA.dtype),
      preferred_element_type=jnp.float32,
  )


def _grad_of_weight(vocab_first: bool, h_TD: Array, spread_TV: Array) -> Array:
  """Returns the gradient of the weight, float32, in its shape."""
  left, right = (spread_TV, h_TD) if vocab_first else (h_TD, spread_TV)
  return jnp.matmul(dense.transpose(left), right, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _losses(
    vocab_first: bool, num_tokens: int | None, h_TD: Array, weight: Array, target_T: Array
) -> Array:
  return _losses_forward(vocab_first, num_tokens, h_TD, weight, target_T)[0]


def _losses_forward(
    vocab_first: bool, num_tokens: int | None, h_TD: Array, weight: Array, target_T: Array
) -> tuple[Array, Kept]:
  logits_TV = _multiply(h_TD, weight, transposed=vocab_first)
  if num_tokens is not None:
    counts_V = jnp.arange(logits_TV.shape[1]) < num_tokens
    logits_TV = jnp.where(counts_V, logits_TV, -jnp.inf)
  largest_T = logits_TV.max(-1)
  exp_TV = jnp.exp(logits_TV - largest_T[:, None])
  sum_T = exp_TV.sum(-1)
  at_target_T = logits_TV[jnp.arange(target_T.size), target_T]
  losses_T = jnp.log(sum_T) + largest_T - at_target_T
  # Fused with the exponentials; a scatter would copy all of them.
  is_target_TV = jnp.arange(exp_TV.shape[1]) == target_T[:, None]
  spread_TV = jnp.where(is_target_TV, exp_TV - sum_T[:, None], exp_TV)
  spread_TV = spread_TV.astype(h_TD.dtype)
  return losses_T, (h_TD, weight, spread_TV, 1 / sum_T)


def _losses_backward(
    vocab_first: bool, num_tokens: int | None, kept: Kept, grad_T: Array
) -> tuple[Array, Array, None]:
  del num_tokens  # The others have no exponentials.
  h_TD, weight, spread_TV, inverse_T = kept
  factor_T1 = (grad_T * inverse_T)[:, None]
  scaled_TD = (h_TD * factor_T1).astype(h_TD.dtype)
  grad_h_TD = factor_T1 * _multiply(spread_TV, weight, transposed=not vocab_first)
  grad_weight = _grad_of_weight(vocab_first, scaled_TD, spread_TV)
  return grad_h_TD.astype(h_TD.dtype), grad_weight, None


_losses.defvjp(_losses_forward, _losses_backward)


@dataclasses.dataclass(frozen=True)
class _Chunks:
  """A split of the vocabulary; the last chunk may overlap the one before."""

  vocab_first: bool
  size: int
  num_tokens: int | None = None

  @property
  def axis(self) -> int:
    """Axis of the vocabulary in the weight."""
    return 0 if self.vocab_first else 1

  def cut(self, weight: Array, start: Array) -> Array:
    return jax.lax.dynamic_slice_in_dim(weight, start, self.size, self.axis)

  def logits(self, h_TD: Array, weight: Array, start: Array) -> tuple[Array, Array]:
    """Returns the logits of a chunk, and their vocabulary indices.

    They are -inf and -1 for entries of the chunk before, and for padding.
    """
    logits_TC = _multiply(h_TD, self.cut(weight, start), transposed=self.vocab_first)
    first = jnp.minimum(start, weight.shape[self.axis] - self.size)
    entry_C = first + jnp.arange(self.size)
    is_new_C = entry_C >= start
    if self.num_tokens is not None:
      is_new_C &= entry_C < self.num_tokens
    return (jnp.where(is_new_C, logits_TC, -jnp.inf), jnp.where(is_new_C, entry_C, -1))

  def fold(self, function: Any, first: Any, weight: Array) -> Any:
    """Folds `function(carry, start)` over the starts of all chunks."""
    starts = jnp.arange(0, weight.shape[self.axis], self.size)
    step = lambda seen, start: (function(seen, start), None)
    return jax.lax.scan(step, first, starts)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked_losses(chunks: _Chunks, h_TD: Array, weight: Array, target_T: Array) -> Array:
  return _chunked_forward(chunks, h_TD, weight, target_T)[0]


def _chunked_forward(
    chunks: _Chunks, h_TD: Array, weight: Array, target_T: Array
) -> tuple[Array, Kept]:
  def add(seen: tuple[Array, Array, Array], start: Array) -> tuple[Array, Array, Array]:
    before_T, sum_T, at_target_T = seen
    logits_TC, entry_C = chunks.logits(h_TD, weight, start)
    largest_T = jnp.maximum(before_T, logits_TC.max(-1))
    added_T = jnp.exp(logits_TC - largest_T[:, None]).sum(-1)
    sum_T = sum_T * jnp.exp(before_T - largest_T) + added_T
    is_target_TC = entry_C == target_T[:, None]
    at_target_T += jnp.where(is_target_TC, logits_TC, 0).sum(-1)
    return largest_T, sum_T, at_target_T

  zeros_T = jnp.zeros(target_T.shape, jnp.float32)
  first = (zeros_T - jnp.inf, zeros_T, zeros_T)
  largest_T, sum_T, at_target_T = chunks.fold(add, first, weight)
  normalizer_T = jnp.log(sum_T) + largest_T
  return normalizer_T - at_target_T, (h_TD, weight, target_T, normalizer_T)


def _chunked_backward(chunks: _Chunks, kept: Kept, grad_T: Array) -> tuple[Array, Array, None]:
  h_TD, weight, target_T, normalizer_T = kept

  def add(grads: tuple[Array, Array], start: Array) -> tuple[Array, Array]:
    grad_h_TD, grad_weight = grads
    logits_TC, entry_C = chunks.logits(h_TD, weight, start)
    spread_TC = jnp.exp(logits_TC - normalizer_T[:, None])
    spread_TC -= entry_C == target_T[:, None]
    spread_TC = (spread_TC * grad_T[:, None]).astype(h_TD.dtype)
    cut = chunks.cut(weight, start)
    grad_h_TD += _multiply(spread_TC, cut, transposed=not chunks.vocab_first)
    part = _grad_of_weight(chunks.vocab_first, h_TD, spread_TC)
    part += chunks.cut(grad_weight, start)
    return grad_h_TD, jax.lax.dynamic_update_slice_in_dim(grad_weight, part, start, chunks.axis)

  zeros = lambda a: jnp.zeros(a.shape, jnp.float32)
  grad_h_TD, grad_weight = chunks.fold(add, (zeros(h_TD), zeros(weight)), weight)
  return grad_h_TD.astype(h_TD.dtype), grad_weight, None


_chunked_losses.defvjp(_chunked_forward, _chunked_backward)
