"""Snippets of programs, and what is read off them; targets."""

import textwrap

from absl.testing import parameterized

from bamboo_jax.gpu import private
from tests.gpu_compile import hlo

_OTHERS = """
%g (p: bf16[64,16], q: bf16[16,32]) -> bf16[64,32] {
  %p = bf16[64,16]{1,0} parameter(0)
  %q = bf16[16,32]{1,0} parameter(1)
  ROOT %d = bf16[64,32]{1,0} dot(%p, %q), lhs_contracting_dims={1}
}
%zeros (p: f32[]) -> f32[1024] {
  %p = f32[] parameter(0)
  ROOT %broadcast.1 = f32[1024]{0} broadcast(%p), dimensions={}
}
%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %e = f32[8]{0} fusion(%x), kind=kLoop, calls=%g
  ROOT %t = (s32[], f32[8]{0}) tuple(%x, %neg)
}
"""


def parse(*lines):
  """Returns a program with arguments %a, %b, %h and lines."""
  return hlo.parse(f"""HloModule jit_run, is_scheduled=true
{_OTHERS}
ENTRY %main (a: bf16[64,16], b: bf16[16,32]) -> f32[4] {{
  %a = bf16[64,16]{{1,0}} parameter(0)
  %b = bf16[16,32]{{1,0}} parameter(1)
  %h = f32[1024]{{0:S(5)}} parameter(2)
  %x = f32[1024]{{0}} bitcast(%a)
{textwrap.indent(chr(10).join(lines), "  ")}
  ROOT %out = (f32[4]{{0}}) tuple(%a)
}}
""")


class HloTest(parameterized.TestCase):

  def test_products(self):
    fused = (
        "%f = bf16[64,32]{1,0} fusion(%a, %b), kind=kCustom, calls=%g, "
        'backend_config={"fusion_backend_config":{"kind":'
        '"__triton_nested_gemm_fusion","block_level_fusion_config":'
        '{"output_tiles":[{"sizes":["16","8"]}]}}}'
    )
    library = '%f = bf16[1,64]{1,0} custom-call(%a), custom_call_target="__cublas$lt$matmul"'
    for line, tile in ((fused, 8), (library, None)):
      program = parse(line)
      self.assertEqual((program.num_slow_products, program.smallest_tile), (0, tile))

  def test_copies(self):
    start = "%s = (f32[1024]{{0:S(5)}}, f32[1024]{{0}}, u32[]) copy-start(%{0})"
    done = "%d = f32[1024]{0:S(5)} copy-done(%s)"
    kernel = "%k = f32[1024]{0} negate(%x)"
    zeros = "%z = f32[1024]{0} fusion(%a), kind=kLoop, calls=%zeros"
    for lines, hidden, faults in (
        ((start.format("x"), kernel, done), True, []),
        ((start.format("x"), done, kernel), False, []),
        ((start.format("h"), kernel, done), True, ["s is from host to host"]),
        (("%c = f32[1024]{0:S(5)} copy(%x)",), False, ["c waits for 4096 bytes"]),
        ((zeros, start.format("z"), done), False, ["s copies a constant of 4096 bytes"]),
    ):
      with self.subTest(lines):
        ((_, num_bytes, is_hidden, found),) = parse(*lines).copies()
        self.assertEqual((num_bytes, is_hidden, found), (4096, hidden, faults))

  @parameterized.parameters(('backend_config={"known_trip_count":{"n":"5"}}', 0), ("", 1))
  def test_loops(self, attribute, unknown):
    program = parse(
        "%t = (s32[], f32[8]{0}) tuple(%a)",
        f"%w = (s32[], f32[8]{{0}}) while(%t), condition=%c, body=%body, {attribute}",
    )
    self.assertEqual(program.num_unknown_loops, unknown)
    self.assertEqual(program.num_slow_products, 1)  # In the body.
    self.assertEqual([program.count_large(size) for size in (32, 33)], [1, 0])


class TargetsTest(parameterized.TestCase):

  @parameterized.parameters(("l4", 8, 9), ("a100", 8, 0), ("h100", 9, 0), ("b200", 10, 0))
  def test_description(self, name, major, minor):
    gpu = private.find(name)
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    text = private.describe(gpu)
    self.assertIn(capability, text)
    self.assertIn(f"device_memory_size: {gpu.memory_bytes}", text)

  def test_unknown(self):
    with self.assertRaisesRegex(ValueError, "GPU 'h10'.*did you mean 'h100'"):
      private.find("h10")
