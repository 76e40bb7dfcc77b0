"""Which settings of JAX and XLA count, and what nodes must have alike."""

from absl.testing import parameterized
import jax

from bamboo_jax.runtime import settings

# They check, log, cache, connect or choose devices; the platform has its key.
_HARMLESS = """
jax2tf_associative_scan_reductions jax2tf_default_native_serialization
jax_array_garbage_collection_guard jax_backend_target
jax_captured_constants_report_frames jax_captured_constants_warn_bytes
jax_check_proxy_envs jax_check_static_indices jax_check_tracer_leaks
jax_compilation_cache_check_contents jax_compilation_cache_dir
jax_compilation_cache_expect_pgle jax_compilation_cache_include_metadata_in_key
jax_compilation_cache_max_size jax_compiler_detailed_logging_min_ops
jax_cpu_collectives_implementation jax_cpu_enable_async_dispatch
jax_cpu_get_global_topology_timeout_minutes
jax_cpu_get_local_topology_timeout_minutes
jax_cross_host_transfer_socket_address jax_cross_host_transfer_timeout_seconds
jax_cross_host_transfer_transfer_size jax_cross_host_transport_addresses
jax_cuda_visible_devices jax_debug_infs jax_debug_key_reuse
jax_debug_leaked_clients_on_clear_backends jax_debug_log_modules jax_debug_nans
jax_default_device jax_disable_bwd_checks jax_disable_vmap_shmap_error
jax_disallow_mesh_context_manager jax_distributed_debug jax_dump_ir_modes
jax_dump_ir_to jax_enable_checks jax_enable_compilation_cache
jax_enable_preemption_service jax_enable_recoverability
jax_experimental_unsafe_xla_runtime_errors jax_explain_cache_misses
jax_export_calling_convention_version jax_export_ignore_forward_compatibility
jax_force_dcn_cross_host_transfers jax_hlo_source_file_canonicalization_regex
jax_include_debug_info_in_dumps jax_include_full_tracebacks_in_locations
jax_legacy_prng_key jax_log_checkpoint_residuals jax_log_compiles
jax_logging_level jax_mock_gpu_topology jax_mutable_array_checks
jax_no_execution jax_no_tracing jax_num_cpu_devices jax_numpy_rank_promotion
jax_oneapi_visible_devices jax_pallas_enable_debug_checks
jax_pallas_poison_buffers jax_pallas_verbose_errors
jax_persistent_cache_enable_xla_caches
jax_persistent_cache_min_compile_time_secs
jax_persistent_cache_min_entry_size_bytes jax_pgle_aggregation_percentile
jax_pgle_profiling_runs jax_pjrt_client_create_options jax_platform_name
jax_platforms jax_pprint_use_color jax_raise_persistent_cache_errors
jax_remove_custom_partitioning_ptr_from_cache_key jax_rocm_visible_devices
jax_send_traceback_to_runtime jax_serialization_version
jax_share_binary_between_hosts jax_share_binary_between_hosts_timeout_ms
jax_sort_devices_by_process_index jax_source_url_schema jax_thread_guard
jax_traceback_filtering jax_traceback_in_locations_limit
jax_tracer_error_num_traceback_frames jax_transfer_guard
jax_transfer_guard_device_to_device jax_transfer_guard_device_to_host
jax_transfer_guard_host_to_device jax_xla_backend mock_num_gpu_processes
""".split()


class SettingsTest(parameterized.TestCase):

  def test_each_setting_of_jax_has_been_looked_at(self):
    known = {*settings.OF_JAX, *_HARMLESS}
    own = {k for k in jax.config.values if "absl" not in k}
    self.assertEqual(own - known, set(), "Do they affect bits?")
    self.assertEqual({*settings.OF_JAX} & {*_HARMLESS}, set())

  @parameterized.parameters(
      ({}, {}),
      ({"JAX_THREEFRY_PARTITIONABLE": "0"},) * 2,
      ({"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},) * 2,
      ({"EAGER_CONSTANT_FOLDING": "1"},) * 2,
      ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},) * 2,
      ({"JAX_LOG_COMPILES": "1", "HOME": "/root"}, {}),
      ({"XLA_FLAGS": "--b=1 --a=2  --b=1"}, {"XLA_FLAGS": "--a=2 --b=1"}),
      (  # Set by a launcher or by this project, or for debugging.
          {
              "XLA_FLAGS": f"--xla_dump_to=/d {settings.NO_FOLDING}"
              " --xla_force_host_platform_device_count=7"
          },
          {},
      ),
      ({"NPROC": "4"}, {"NPROC": "4"}),
      ({"NPROC": "4", "BAMBOO_JAX_NPROC": "2"}, {"NPROC": "4"}),
      ({"NPROC": "2", "BAMBOO_JAX_NPROC": "2"}, {}),
  )
  def test_what_nodes_must_have_alike(self, environ, want):
    self.assertEqual(settings.read_given(environ), want)
