"""Causal self-attention that keeps its probabilities once.

Scores and softmax are float32 whatever the dtype of the activations.

Dimension key:
  S: examples per microbatch
  L: sequence length, tokens (Q as queries, M as keys)
  H: heads
  K: width of a head
  D: model width, H * K
"""

import functools

import jax
import jax.numpy as jnp

from bamboo_jax.models import dropout


def attend(
    qkv_SLE: jax.Array,
    key: jax.Array | None,
    *,
    num_heads: int,
    dropout_rate: float,
) -> jax.Array:
  """Returns what every token reads from itself and those before it, [S, L, D].

  Args:
    qkv_SLE: Queries, keys and values side by side, E = 3 * D.
    key: Source of dropout of probabilities; None for no dropout.
    num_heads: Number of heads; divides D.
    dropout_rate: Share of probabilities to drop.
  """
  num_examples, length, _ = qkv_SLE.shape
  mask_SHQM = None
  if key is not None:
    shape = (num_examples, num_heads, length, length)
    mask_SHQM = dropout.keep_mask(key, shape, rate=dropout_rate)
  return _attend(
      num_heads, dropout.keep_scale(dropout_rate), qkv_SLE, mask_SHQM
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(num_heads, keep_scale, qkv_SLE, mask_SHQM):
  return _attend_forward(num_heads, keep_scale, qkv_SLE, mask_SHQM)[0]


def _attend_forward(num_heads, keep_scale, qkv_SLE, mask_SHQM):
  qkv = _split_heads(qkv_SLE, num_heads)
  q_SHLK, k_SHLK, v_SHLK = qkv
  scores_SHQM = jnp.einsum(
      "shqk,shmk->shqm", q_SHLK, k_SHLK, preferred_element_type=jnp.float32
  )
  length, width = q_SHLK.shape[-2:]
  causal_QM = jnp.tril(jnp.ones((length, length), bool))
  scores_SHQM = jnp.where(causal_QM, scores_SHQM * width**-0.5, -jnp.inf)
  exp_SHQM = jnp.exp(scores_SHQM - scores_SHQM.max(-1, keepdims=True))
  probs_SHQM = exp_SHQM * (1 / exp_SHQM.sum(-1, keepdims=True))
  probs_SHQM = probs_SHQM.astype(qkv_SLE.dtype)
  out_SHQK = jnp.einsum(
      "shqm,shmk->shqk", _drop(probs_SHQM, mask_SHQM, keep_scale), v_SHLK
  )
  out_SLD = _merge_heads(out_SHQK)
  return out_SLD, (qkv, probs_SHQM, mask_SHQM, out_SLD)


def _attend_backward(num_heads, keep_scale, kept, grad_SLD):
  (q_SHLK, k_SHLK, v_SHLK), probs_SHQM, mask_SHQM, out_SLD = kept
  # The softmax needs the sum over M of probabilities times their gradients. It
  # is also the sum over K of outputs times theirs, which is less to add up.
  along_SLHK = (grad_SLD.astype(jnp.float32) * out_SLD).reshape(
      *grad_SLD.shape[:2], num_heads, -1
  )
  along_SHQ = along_SLHK.sum(-1).swapaxes(1, 2)
  grad_SHQK = _heads(grad_SLD, num_heads)
  dropped_SHQM = _drop(probs_SHQM, mask_SHQM, keep_scale)
  grad_v_SHMK = jnp.einsum("shqm,shqk->shmk", dropped_SHQM, grad_SHQK)
  grad_probs_SHQM = jnp.einsum(
      "shqk,shmk->shqm", grad_SHQK, v_SHLK, preferred_element_type=jnp.float32
  )
  grad_probs_SHQM = _drop(grad_probs_SHQM, mask_SHQM, keep_scale)
  scale = q_SHLK.shape[-1] ** -0.5
  grad_scores_SHQM = (
      probs_SHQM * (grad_probs_SHQM - along_SHQ[..., None]) * scale
  ).astype(grad_SLD.dtype)
  grad_q_SHQK = jnp.einsum("shqm,shmk->shqk", grad_scores_SHQM, k_SHLK)
  grad_k_SHMK = jnp.einsum("shqm,shqk->shmk", grad_scores_SHQM, q_SHLK)
  grads = (grad_q_SHQK, grad_k_SHMK, grad_v_SHMK)
  grad_qkv_SLE = jnp.concatenate([_merge_heads(g) for g in grads], axis=-1)
  return grad_qkv_SLE, None


_attend.defvjp(_attend_forward, _attend_backward)


def _drop(x, mask, scale):
  return (
      x if mask is None else jnp.where(mask, x * jnp.asarray(scale, x.dtype), 0)
  )


def _split_heads(qkv_SLE, num_heads):
  parts = jnp.split(qkv_SLE, 3, axis=-1)
  return tuple(_heads(part, num_heads) for part in parts)


def _heads(x_SLD, num_heads):
  x_SLHK = x_SLD.reshape(*x_SLD.shape[:2], num_heads, -1)
  return x_SLHK.swapaxes(1, 2)


def _merge_heads(x_SHLK):
  num_examples, _, length, _ = x_SHLK.shape
  return x_SHLK.swapaxes(1, 2).reshape(num_examples, length, -1)
