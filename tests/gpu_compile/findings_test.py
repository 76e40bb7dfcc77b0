"""Snippets of programs, and what is read off them."""

import textwrap

from absl.testing import parameterized

from bamboo_jax.gpu import targets
from tests.gpu_compile import findings, hlo

_HEAD = "HloModule jit_run, is_scheduled=true\n\n"
_DOT = """
    %dot = bf16[64,32]{1,0} custom-call(%a, %b),
 custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":
{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
"""


def read(*lines, others=""):
  """Returns the findings of an entry with arguments %a, %b, %h and lines."""
  entry = "\n".join(f"  {line}" for line in lines)
  text = f"""{_HEAD}{textwrap.dedent(others)}
ENTRY %main (a: bf16[64,16], b: bf16[16,32]) -> f32[4] {{
  %a = bf16[64,16]{{1,0}} parameter(0)
  %b = bf16[16,32]{{1,0}} parameter(1)
  %h = f32[1024]{{0:S(5)}} parameter(2)
{entry}
  ROOT %out = (f32[4]{{0}}) tuple(%a)
}}
"""
  return findings.find(hlo.parse(text))


_CONSTANT = """
%zeros (p: f32[]) -> f32[1024] {
  %p = f32[] parameter(0)
  ROOT %broadcast.1 = f32[1024]{0} broadcast(%p), dimensions={}
}
"""
_BODY = """
%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %neg = f32[8]{0} negate(%x)
  ROOT %t = (s32[], f32[8]{0}) tuple(%x, %neg)
}
"""


class FindingsTest(parameterized.TestCase):

  def test_products(self):
    found = read(
        _DOT.replace("\n", "").strip(),
        "%f = bf16[64,32]{1,0} fusion(%a, %b), kind=kCustom, calls=%g, "
        'backend_config={"fusion_backend_config":{"kind":'
        '"__triton_nested_gemm_fusion","block_level_fusion_config":'
        '{"output_tiles":[{"sizes":["16","8"]}]}}}',
        others="""
        %g (p: bf16[64,16], q: bf16[16,32]) -> bf16[64,32] {
          %p = bf16[64,16]{1,0} parameter(0)
          %q = bf16[16,32]{1,0} parameter(1)
          ROOT %d = bf16[64,32]{1,0} dot(%p, %q), lhs_contracting_dims={1}
        }
        """,
    )
    self.assertEqual(found.products, {"cuBLASLt": 1, "Triton": 1})
    self.assertEqual(found.smallest_tile, 8)
    self.assertEqual(found.kernels, 2)

  @parameterized.parameters(
      ("__cudnn$fmhaSoftmaxBackward", "cuDNN attention"),
      ("__cudnn$convForward", "cuDNN convolution"),
  )
  def test_libraries(self, target, library):
    found = read(f'%f = bf16[1,64]{{1,0}} custom-call(%a), custom_call_target="{target}"')
    self.assertEqual(found.products, {library: 1})

  def test_copies(self):
    start = "%s{0} = (f32[1024]{{0:S(5)}}, f32[1024]{{0}}, u32[]) copy-start(%{1})"
    done = "%d{0} = f32[1024]{{0:S(5)}} copy-done(%s{0})"
    kernel = "%k = f32[1024]{0} negate(%x)"
    given = "%x = f32[1024]{0} bitcast(%a)"
    for lines, hidden, faults in (
        ((start.format(1, "x"), kernel, done.format(1)), 4096, 0),
        ((start.format(1, "x"), done.format(1), kernel), 0, 0),
        ((start.format(1, "h"), kernel, done.format(1)), 4096, 1),
        (("%c = f32[1024]{0:S(5)} copy(%x)",), 0, 1),
    ):
      with self.subTest(lines):
        found = read(given, *lines)
        self.assertEqual(found.host_bytes, 4096)
        self.assertEqual(found.hidden_host_bytes, hidden)
        self.assertLen(found.host_faults, faults)

  def test_zeros_should_not_be_copied(self):
    found = read(
        "%z = f32[1024]{0} fusion(%a), kind=kLoop, calls=%zeros",
        "%s = (f32[1024]{0:S(5)}, f32[1024]{0}, u32[]) copy-start(%z)",
        "%d = f32[1024]{0:S(5)} copy-done(%s)",
        others=_CONSTANT,
    )
    self.assertEqual(found.host_faults, ("s copies a constant of 4096 bytes",))

  @parameterized.parameters(('backend_config={"known_trip_count":{"n":"5"}}', 5, 0), ("", 1, 1))
  def test_loops(self, attribute, kernels, unknown):
    found = read(
        "%t = (s32[], f32[8]{0}) tuple(%a)",
        f"%w = (s32[], f32[8]{{0}}) while(%t), condition=%c, body=%body, " f"{attribute}",
        others=_BODY,
    )
    self.assertEqual((found.kernels, found.unknown_loops), (kernels, unknown))

  def test_no_entry(self):
    with self.assertRaisesRegex(ValueError, "no line that starts ENTRY"):
      hlo.parse("HloModule x\n")


class TargetsTest(parameterized.TestCase):

  @parameterized.parameters(("l4", 8, 9), ("a100", 8, 0), ("h100", 9, 0), ("b200", 10, 0))
  def test_description(self, name, major, minor):
    gpu = targets.find(name)
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    text = targets.describe(gpu)
    self.assertIn(capability, text)
    self.assertIn(f"device_memory_size: {gpu.memory_bytes}", text)

  def test_unknown(self):
    with self.assertRaisesRegex(ValueError, "GPU 'h10'.*did you mean 'h100'"):
      targets.find("h10")
