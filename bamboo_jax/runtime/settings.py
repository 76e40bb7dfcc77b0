"""Settings of JAX and XLA that affect machine code, and so bits; without JAX.

Of JAX these are all of its settings but those that only check, log, cache or
connect. A test lists the others, so that each version of JAX is looked through.
"""

from collections.abc import Mapping

# Of JAX, by variables such as JAX_DISABLE_JIT, or by itself.
OF_JAX = (
    "check_vma",
    "eager_constant_folding",
    "jax_allow_f16_reductions",
    "jax_auto_pcast",
    "jax_bcoo_cusparse_lowering",
    "jax_compiler_enable_remat_pass",
    "jax_custom_jvp3",
    "jax_custom_vjp3",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_disable_most_optimizations",
    "jax_embedded_constants_max_bytes",
    "jax_enable_custom_prng",
    "jax_enable_pgle",
    "jax_enable_x64",
    "jax_error_checking_behavior_divide",
    "jax_error_checking_behavior_nan",
    "jax_error_checking_behavior_oob",
    "jax_exec_time_optimization_effort",
    "jax_explicit_x64_dtypes",
    "jax_high_dynamic_range_gumbel",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_mosaic_allow_hlo",
    "jax_numpy_dtype_promotion",
    "jax_optimization_level",
    "jax_pallas_use_mosaic_gpu",
    "jax_ragged_dot_use_gpu_pallas_triton_lowering",
    "jax_ragged_dot_use_ragged_dot_instruction",
    "jax_random_seed_offset",
    "jax_refs_to_pins",
    "jax_remat3",
    "jax_remat_barrier_no_cotangents",
    "jax_remove_size_one_mesh_axis_from_type",
    "jax_scan3",
    "jax_softmax_custom_jvp",
    "jax_threefry_gpu_kernel_lowering",
    "jax_threefry_partitionable",
    "jax_use_direct_linearize",
    "jax_use_emit_pipeline_primitive",
    "jax_use_hlo_logistic_lowering",
    "jax_use_magma",
    "jax_use_rgv3",
    "jax_use_shardy_partitioner",
    "jax_use_simplified_jaxpr_constants",
    "jax_xla_profile_version",
)
# Of XLA and its libraries, beside XLA_FLAGS.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "LIBTPU_INIT_ARGS",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
)
THREADS = "NPROC"  # Number of threads of XLA:CPU.
# The number that this project set, here or in a parent process; a child with
# another executor may set another one.
OUR_THREADS = "BAMBOO_JAX_NPROC"
# Of XLA, set for the bits of CPUs; programs of GPUs are compiled with it, too.
NO_FOLDING = "--xla_disable_hlo_passes=transpose-folding"
# Flags of XLA that affect no bits. A launcher sets the first one.
_HARMLESS = ("--xla_force_host_platform_device_count", "--xla_dump_")


def read_flags(environ: Mapping[str, str]) -> list[str]:
  """Returns the flags of XLA that affect machine code, sorted."""
  flags = sorted(set(environ.get("XLA_FLAGS", "").split()))
  return [flag for flag in flags if not flag.startswith(_HARMLESS)]


def read_given(environ: Mapping[str, str]) -> dict[str, str]:
  """Returns the variables that affect machine code and that a user has set.

  All nodes of a run must have the same.
  """
  names = [*(name.upper() for name in OF_JAX), *VARIABLES]
  if environ.get(THREADS) != environ.get(OUR_THREADS):
    names.append(THREADS)
  found = {name: environ[name] for name in names if name in environ}
  flags = [flag for flag in read_flags(environ) if flag != NO_FOLDING]
  return found | ({"XLA_FLAGS": " ".join(flags)} if flags else {})
