"""Snippets of programs, and what is read off them."""

import textwrap

from absl.testing import parameterized

from bamboo_jax.gpu import findings, hlo, targets

_H100 = targets.find("h100")
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
  return findings.find(hlo.parse(text), _H100)


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
_CUT = """
%cut (p: f32[1000,1024], i: s32[]) -> f32[1,1024] {
  %p = f32[1000,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %d = f32[1,1024]{1,0} dynamic-slice(%p, %i), dynamic_slice_sizes={1,1024}
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
    self.assertEqual(found.flops, 2 * 2 * 64 * 32 * 16)
    self.assertEqual(found.kernels, 2)

  @parameterized.parameters(
      ("__cudnn$fmhaSoftmax", 2 * 2 * 4096 * 4), ("__cudnn$fmhaSoftmaxBackward", 5 * 2 * 4096 * 4)
  )
  def test_attention(self, target, flops):
    found = read(
        "%q = bf16[1,64,1,4]{3,2,1,0} bitcast(%a)",
        f"%f = bf16[1,64,1,4]{{3,2,1,0}} custom-call(%q), "
        f'custom_call_target="{target}", backend_config={{'
        '"intermediate_tensor_shape": {"dimensions": ["1", "1", "64", "64"]}}',
    )
    self.assertEqual((found.attention, found.flops), (1, flops))

  @parameterized.parameters(
      ("Forward", "%x, %w", "f32[2,8,8,6]", 2 * 2 * 64 * 6 * 9 * 4),
      ("BackwardInput", "%y, %w", "f32[2,8,8,4]", 2 * 2 * 64 * 6 * 9 * 4),
      ("BackwardFilter", "%x, %y", "f32[6,3,3,4]", 2 * 2 * 64 * 6 * 9 * 4),
  )
  def test_convolutions(self, kind, operands, shape, flops):
    found = read(
        "%x = f32[2,8,8,4]{3,2,1,0} bitcast(%a)",
        "%y = f32[2,8,8,6]{3,2,1,0} bitcast(%a)",
        "%w = f32[6,3,3,4]{3,2,1,0} bitcast(%a)",
        f"%c = ({shape}{{3,2,1,0}}, u8[0]{{0}}) custom-call({operands}), "
        f'custom_call_target="__cudnn$conv{kind}", '
        "dim_labels=b01f_o01i->b01f",
    )
    self.assertEqual(found.flops, flops)
    self.assertEqual(found.products, {"cuDNN convolution": 1})

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

  def test_collectives(self):
    start = "%s = (f32[8]{0}, f32[8]{0}) all-reduce-start(%a), to_apply=%add"
    done = "%d = f32[8]{0} all-reduce-done(%s)"
    kernel = "%k = f32[8]{0} negate(%b)"
    for lines, lone in (((start, done), 1), ((start, kernel, done), 0)):
      found = read(*lines)
      self.assertEqual(found.collectives, {"all-reduce": 1})
      self.assertEqual(found.lone_collectives, lone)

  def test_a_fusion_that_cuts_reads_what_it_cuts(self):
    found = read(
        "%p = f32[1000,1024]{1,0} bitcast(%a)",
        "%i = s32[] constant(3)",
        "%f = f32[1,1024]{1,0} fusion(%p, %i), kind=kLoop, calls=%cut",
        others=_CUT,
    )
    rate = 0.87 * _H100.memory_bytes_per_sec
    self.assertAlmostEqual(found.secs, 2e-6 + (4096 * 2 + 4) / rate, places=12)

  @parameterized.parameters(("bf16", 1.0), ("f32", 0.5))
  def test_products_of_float32_have_half_the_peak(self, dtype, share):
    side = 1 << 14
    array = f"{dtype}[{side},{side}]{{1,0}}"
    found = read(
        f"%p = {array} bitcast(%a)", f"%d = {array} dot(%p, %p), lhs_contracting_dims={{1}}"
    )
    peak = 0.5 * share * _H100.flops_per_sec
    self.assertAlmostEqual(found.secs, 2e-6 + 2 * side**3 / peak)

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
