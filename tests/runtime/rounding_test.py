"""What affects bits beside the config: processor, threads, settings of JAX and XLA."""

import json
import os
from unittest import mock

from absl.testing import parameterized
import jax

from bamboo_jax.runtime import rounding, settings

_CPU = """
processor	: 0
vendor_id	: GenuineIntel
model name	: Xeon
cpu MHz		: 2000.1
flags		: sse avx

processor	: 1
model name	: Other
"""


# Without "jax_". They check, log, cache, connect or choose devices; the platform has its key.
_HARMLESS = """
jax2tf_associative_scan_reductions jax2tf_default_native_serialization
array_garbage_collection_guard backend_target captured_constants_report_frames
captured_constants_warn_bytes check_proxy_envs check_static_indices check_tracer_leaks
compilation_cache_check_contents compilation_cache_dir compilation_cache_expect_pgle
compilation_cache_include_metadata_in_key compilation_cache_max_size
compiler_detailed_logging_min_ops cpu_collectives_implementation cpu_enable_async_dispatch
cpu_get_global_topology_timeout_minutes cpu_get_local_topology_timeout_minutes
cross_host_transfer_socket_address cross_host_transfer_timeout_seconds
cross_host_transfer_transfer_size cross_host_transport_addresses cuda_visible_devices debug_infs
debug_key_reuse debug_leaked_clients_on_clear_backends debug_log_modules debug_nans default_device
disable_bwd_checks disable_vmap_shmap_error disallow_mesh_context_manager distributed_debug
distributed_verify_secure_credentials dump_ir_modes dump_ir_to enable_checks
enable_compilation_cache enable_preemption_service enable_recoverability
experimental_unsafe_xla_runtime_errors explain_cache_misses export_calling_convention_version
export_deserialize_expired_versions export_ignore_forward_compatibility
force_dcn_cross_host_transfers hlo_source_file_canonicalization_regex include_debug_info_in_dumps
include_full_tracebacks_in_locations legacy_prng_key log_checkpoint_residuals log_compiles
logging_level mock_gpu_topology mtls_ca_file mtls_cert_file mtls_key_file mtls_peer_uri_prefix
mutable_array_checks no_execution no_tracing num_cpu_devices numpy_rank_promotion
oneapi_visible_devices pallas_auto_assign_collective_ids pallas_auto_assign_collective_ids_limit
pallas_enable_debug_checks pallas_poison_buffers pallas_verbose_errors
persistent_cache_enable_xla_caches persistent_cache_min_compile_time_secs
persistent_cache_min_entry_size_bytes pgle_aggregation_percentile pgle_profiling_runs
pjrt_client_create_options platform_name platforms pprint_use_color raise_on_ppermute_sort_diff
raise_persistent_cache_errors remove_custom_partitioning_ptr_from_cache_key rocm_visible_devices
send_traceback_to_runtime serialization_version share_binary_between_hosts
share_binary_between_hosts_timeout_ms sort_devices_by_process_index source_url_schema thread_guard
traceback_filtering traceback_in_locations_limit tracer_error_num_traceback_frames transfer_guard
transfer_guard_device_to_device transfer_guard_device_to_host transfer_guard_host_to_device
use_cpp_shard_args xla_backend mock_num_gpu_processes
""".split()


class RoundingTest(parameterized.TestCase):

  def test_is_plain_and_repeats(self):
    found = rounding.describe()
    self.assertEqual(json.loads(json.dumps(found)), found)
    self.assertEqual(rounding.describe(), found)
    self.assertEqual(found["versions.jax"], jax.__version__)

  @parameterized.named_parameters(
      ("threads", "NPROC", "93", "threads", 93),
      ("tf32", "NVIDIA_TF32_OVERRIDE", "0", None, "0"),
      ("flags", "XLA_FLAGS", "--xla_dump_to=/d --a=2", None, "--a=2"),
  )
  def test_variable(self, variable, value, key, want):
    with mock.patch.dict(os.environ, {variable: value}):
      found = rounding.describe()
    self.assertEqual(found[key or f"environment.{variable}"], want)

  @parameterized.parameters(
      ("jax_threefry_partitionable", False),
      ("jax_default_prng_impl", "rbg", "environment.compiler"),
  )
  def test_setting_of_jax(self, name, value, group=None):
    def find():
      found = rounding.describe()
      return found[group][name] if group else found[f"environment.{name}"]

    before = jax.config.values[name]
    self.assertEqual(find(), before)
    self.addCleanup(jax.config.update, name, before)
    jax.config.update(name, value)
    self.assertEqual(find(), value)

  def test_processor(self):
    found = []
    for flags in ("avx", "avx", "avx2"):
      cpu = f"x86_64\nvendor_id: x\nmodel name: Fast 7\nflags: {flags}"
      with mock.patch.object(rounding, "describe_processor", return_value=cpu):
        found.append(rounding.describe()["processor"])
    self.assertEqual(found[0], found[1])
    self.assertNotEqual(found[1], found[2])
    self.assertStartsWith(found[0], "Fast 7 ")

  @parameterized.parameters(
      ("2000.1", "800.0", True),  # The clock changes all the time.
      ("processor	: 1", "processor	: 2", True),
      ("sse avx", "sse", False),
      ("Xeon", "EPYC", False),
  )
  def test_cpu(self, old, new, is_same):
    before = rounding.parse_cpu(_CPU)
    after = rounding.parse_cpu(_CPU.replace(old, new))
    self.assertIn("flags: sse avx", before)
    self.assertEqual(before == after, is_same)

  @parameterized.parameters((2, 8, True), (8, 16, False), (16, 16, True))
  def test_threads(self, old, new, is_same):
    """These tests have 8 devices, so at least 8 threads."""
    hosts = []
    for threads in (old, new):
      with mock.patch.dict(os.environ, NPROC=str(threads)):
        hosts.append(rounding.describe_host())
    self.assertEqual(hosts[0] == hosts[1], is_same)


class SettingsTest(parameterized.TestCase):

  def test_each_setting_of_jax_has_been_looked_at(self):
    strip = lambda names: {name.removeprefix("jax_") for name in names if "absl" not in name}
    known = strip(settings.OF_JAX) | {*_HARMLESS}
    self.assertEmpty(strip(jax.config.values) - known, "Do they affect bits?")
    self.assertEmpty(strip(settings.OF_JAX) & {*_HARMLESS})

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
