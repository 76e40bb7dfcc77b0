"""Self-attention with few residuals, causal or with a padding mask.

Up to `_KEEP_LENGTH` tokens the probabilities are kept for the backward pass.
Above it they would outweigh all other residuals of a block, and are recomputed
from queries, keys and the normaliser of each row. Scores and softmax are
float32 for activations of any dtype. On GPUs long causal attention without
dropout is cuDNN's; what is kept is the same.

Dimension key:

  S: examples per microbatch
  L: sequence length; Q as queries, M as keys (memory)
  H: heads
  K: width of a head
  D: model width, H * K
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from bamboo_jax.models import dropout
from bamboo_jax.models.text import cudnn

_KEEP_LENGTH = 256

Array = jax.Array
Heads = tuple[Array, Array, Array]
Masks = tuple[Array | None, Array | None]  # Of keys, and of documents.
_Kept = tuple[Any, ...]


def attend(
    qkv_SLE: Array,
    key: Array | None,
    *,
    num_heads: int,
    dropout_rate: float,
    read_SM: Array | None = None,
    document_SL: Array | None = None,
) -> Array:
  """Returns self-attention, [S, L, D].

  Args:
    qkv_SLE: Queries, keys and values side by side (E = 3 * D).
    key: Random key for dropout of the probabilities; None for no dropout.
    read_SM: Nonzero where keys may be attended, at least once per example; None
      for causal attention.
    document_SL: Numbers of documents, which do not attend to each other.
  """
  masks = (read_SM, document_SL)
  if key is None:
    return _attend(_Options(num_heads), qkv_SLE, None, masks)
  options = _Options(num_heads, dropout_rate, str(jax.random.key_impl(key)))
  return _attend(options, qkv_SLE, jax.random.key_data(key), masks)


def same_document(document_SL: Array | None) -> Array | None:
  """Returns whether two tokens share a document, [S, 1, Q, M]; None: all do."""
  if document_SL is None:
    return None
  return document_SL[:, None, :, None] == document_SL[:, None, None, :]


def restart(document_SL: Array) -> Array:
  """Returns positions that begin with 0 at each document, int32 [S, L]."""
  place_L = jnp.arange(document_SL.shape[1])
  before_SL = jnp.pad(document_SL, ((0, 0), (1, 0)))[:, :-1]
  first_SL = jnp.where(document_SL != before_SL, place_L, 0)
  return place_L - jax.lax.cummax(first_SL, axis=1)


def attend_by(implementation: str, heads: Heads, document_SL: Array | None = None) -> Array:
  """Returns causal attention by a kernel of JAX, [S, L, H * K].

  `heads` are queries [S, L, H, K], and keys and values, which may have fewer
  heads.
  """
  kernel: Any = implementation  # "xla" or "cudnn", which keeps no scores.
  read_SLHK = jax.nn.dot_product_attention(
      *heads, mask=same_document(document_SL), is_causal=True, implementation=kernel
  )
  return read_SLHK.reshape(*read_SLHK.shape[:2], -1)


def split_heads(qkv_SLE: Array, num_heads: int) -> Heads:
  """Returns queries, keys and values, [S, L, H, K] each."""
  num_examples, length, _ = qkv_SLE.shape
  qkv_SL3HK = qkv_SLE.reshape(num_examples, length, 3, num_heads, -1)
  return qkv_SL3HK[:, :, 0], qkv_SL3HK[:, :, 1], qkv_SL3HK[:, :, 2]


@dataclasses.dataclass(frozen=True)
class _Options:
  """Static options; `prng` is the generator of the key."""

  num_heads: int
  dropout_rate: float = 0.0
  prng: str | None = None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: _Options, qkv_SLE: Array, key_data: Array | None, masks: Masks) -> Array:
  return _attend_forward(options, qkv_SLE, key_data, masks)[0]


def _attend_forward(
    options: _Options, qkv_SLE: Array, key_data: Array | None, masks: Masks
) -> tuple[Array, _Kept]:
  if _takes_cudnn(options, qkv_SLE, key_data, masks):

    def by_cudnn(qkv_SLE: Array) -> tuple[Array, Array]:
      out_SLHK, sums_SHL = cudnn.forward(*split_heads(qkv_SLE, options.num_heads))
      return out_SLHK.reshape(*out_SLHK.shape[:2], -1), sums_SHL[..., None]

    out_SLD, normalizer_SHQ1 = jax.lax.platform_dependent(
        qkv_SLE,
        cuda=by_cudnn,
        default=lambda qkv_SLE: _own_forward(options, qkv_SLE, None, masks)[:2],
    )
  else:
    out_SLD, normalizer_SHQ1, probs_SHQM, mask_SHQM = _own_forward(
        options, qkv_SLE, key_data, masks
    )
  if qkv_SLE.shape[1] <= _KEEP_LENGTH:  # Not of cuDNN.
    return out_SLD, (qkv_SLE, probs_SHQM, None, mask_SHQM, None, None, out_SLD)
  return out_SLD, (qkv_SLE, None, normalizer_SHQ1, None, key_data, masks, out_SLD)


def _takes_cudnn(options: _Options, qkv_SLE: Array, key_data: Array | None, masks: Masks) -> bool:
  """Returns whether attention is by cuDNN on GPUs."""
  _, length, size = qkv_SLE.shape
  if length <= _KEEP_LENGTH or any(x is not None for x in (key_data, *masks)):
    return False
  width = size // (3 * options.num_heads)
  return cudnn.supports(qkv_SLE.dtype, length, width)


def _own_forward(
    options: _Options, qkv_SLE: Array, key_data: Array | None, masks: Masks
) -> tuple[Array, Array, Array, Array | None]:
  """Returns attention, normaliser, probabilities and mask of dropout."""
  qkv_SHLK = _split_qkv(qkv_SLE, options.num_heads)
  scores_SHQM = _scores(qkv_SHLK, masks)
  largest_SHQ1 = scores_SHQM.max(-1, keepdims=True)
  exp_SHQM = jnp.exp(scores_SHQM - largest_SHQ1)
  sum_SHQ1 = exp_SHQM.sum(-1, keepdims=True)
  probs_SHQM = (exp_SHQM * (1 / sum_SHQ1)).astype(qkv_SLE.dtype)
  mask_SHQM = _keep_mask(options, key_data, probs_SHQM.shape)
  dropped_SHQM = _drop(options, probs_SHQM, mask_SHQM)
  out_SLD = _merge_heads(jnp.einsum("shqm,shmk->shqk", dropped_SHQM, qkv_SHLK[2]))
  normalizer_SHQ1 = largest_SHQ1 + jnp.log(sum_SHQ1)
  return out_SLD, normalizer_SHQ1, probs_SHQM, mask_SHQM


def _attend_backward(options: _Options, kept: _Kept, grad_SLD: Array) -> tuple[Array, None, None]:
  qkv_SLE, _, normalizer_SHQ1, _, key_data, masks, out_SLD = kept
  if _takes_cudnn(options, qkv_SLE, key_data, masks):

    def by_cudnn(qkv_SLE: Array, normalizer_SHQ1: Array, out_SLD: Array, grad_SLD: Array) -> Array:
      heads = split_heads(qkv_SLE, options.num_heads)
      out_SLHK, grad_SLHK = (x.reshape(heads[0].shape) for x in (out_SLD, grad_SLD))
      grads = cudnn.backward(*heads, normalizer_SHQ1[..., 0], out_SLHK, grad_SLHK)
      return jnp.stack(grads, axis=2).reshape(qkv_SLE.shape)

    grad_SLE = jax.lax.platform_dependent(
        *(qkv_SLE, normalizer_SHQ1, out_SLD, grad_SLD),
        cuda=by_cudnn,
        default=lambda qkv_SLE, normalizer_SHQ1, out_SLD, grad_SLD: (
            _own_backward(
                options, (qkv_SLE, None, normalizer_SHQ1, None, None, masks, out_SLD), grad_SLD
            )
        ),
    )
  else:
    grad_SLE = _own_backward(options, kept, grad_SLD)
  return grad_SLE, None, None


def _own_backward(options: _Options, kept: _Kept, grad_SLD: Array) -> Array:
  """Returns the gradient of queries, keys and values side by side."""
  qkv_SLE, probs_SHQM, normalizer_SHQ1, mask_SHQM = kept[:4]
  key_data, masks, out_SLD = kept[4:]
  qkv_SHLK = _split_qkv(qkv_SLE, options.num_heads)
  q_SHQK, k_SHMK, v_SHMK = qkv_SHLK
  if probs_SHQM is None:
    probs_SHQM = jnp.exp(_scores(qkv_SHLK, masks) - normalizer_SHQ1)
    probs_SHQM = probs_SHQM.astype(grad_SLD.dtype)
    mask_SHQM = _keep_mask(options, key_data, probs_SHQM.shape)
  grad_SHQK = _split_heads(grad_SLD, options.num_heads)
  dropped_SHQM = _drop(options, probs_SHQM, mask_SHQM)
  grad_v_SHMK = jnp.einsum("shqm,shqk->shmk", dropped_SHQM, grad_SHQK)
  grad_probs_SHQM = jnp.einsum(
      "shqk,shmk->shqm", grad_SHQK, v_SHMK, preferred_element_type=jnp.float32
  )
  grad_probs_SHQM = _drop(options, grad_probs_SHQM, mask_SHQM)
  # The sum over M of probabilities times their gradients, computed as that over K of outputs
  # times their gradients: equal, also with dropout, and cheaper.
  product_SLD = out_SLD.astype(jnp.float32) * grad_SLD.astype(jnp.float32)
  along_SHQ1 = _split_heads(product_SLD, options.num_heads).sum(-1, keepdims=True)
  grad_scores_SHQM = probs_SHQM * (grad_probs_SHQM - along_SHQ1)
  grad_scores_SHQM *= q_SHQK.shape[-1] ** -0.5
  grad_scores_SHQM = grad_scores_SHQM.astype(grad_SLD.dtype)
  grad_q_SHQK = jnp.einsum("shqm,shmk->shqk", grad_scores_SHQM, k_SHMK)
  grad_k_SHMK = jnp.einsum("shqm,shqk->shmk", grad_scores_SHQM, q_SHQK)
  grads = (grad_q_SHQK, grad_k_SHMK, grad_v_SHMK)
  return jnp.concatenate([_merge_heads(g) for g in grads], axis=-1)


_attend.defvjp(_attend_forward, _attend_backward)


def _scores(qkv_SHLK: Heads, masks: Masks) -> Array:
  """Returns scaled scores, float32 [S, H, Q, M]; -inf where masked."""
  read_SM, document_SL = masks
  q_SHQK, k_SHMK, _ = qkv_SHLK
  scores_SHQM = jnp.einsum("shqk,shmk->shqm", q_SHQK, k_SHMK, preferred_element_type=jnp.float32)
  length, width = q_SHQK.shape[-2:]
  if read_SM is None:
    is_read = jnp.tril(jnp.ones((length, length), bool))
  else:
    is_read = read_SM[:, None, None, :] != 0
  if (is_same := same_document(document_SL)) is not None:
    is_read = is_read & is_same
  return jnp.where(is_read, scores_SHQM * width**-0.5, -jnp.inf)


def _keep_mask(options: _Options, key_data: Array | None, shape: tuple[int, ...]) -> Array | None:
  if key_data is None:
    return None
  key = jax.random.wrap_key_data(key_data, impl=options.prng)
  return dropout.keep_mask(key, shape, rate=options.dropout_rate)


def _drop(options: _Options, x: Array, mask: Array | None) -> Array:
  if mask is None:
    return x
  return dropout.apply_mask(x, mask, rate=options.dropout_rate)


def _split_qkv(qkv_SLE: Array, num_heads: int) -> Heads:
  q, k, v = (_split_heads(part_SLD, num_heads) for part_SLD in jnp.split(qkv_SLE, 3, axis=-1))
  return q, k, v


def _split_heads(x_SLD: Array, num_heads: int) -> Array:
  num_examples, length, _ = x_SLD.shape
  return x_SLD.reshape(num_examples, length, num_heads, -1).swapaxes(1, 2)


def _merge_heads(x_SHLK: Array) -> Array:
  num_examples, _, length, _ = x_SHLK.shape
  return x_SHLK.swapaxes(1, 2).reshape(num_examples, length, -1)
