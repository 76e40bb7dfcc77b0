"""Tables as text."""

from absl.testing import absltest

from bamboo_jax.metrics import table as table_lib

_ROWS = [["mode", "ms", "note"], ["lazy", "8.5", "a"], ["none", "10.0", ""]]


class TableTest(absltest.TestCase):

  def test_columns(self):
    self.assertEqual(
        table_lib.align(_ROWS, left=(0, 2)), "mode    ms  note\nlazy   8.5  a\nnone  10.0"
    )
    self.assertEqual(table_lib.align([["a"], ["bcd"]], left=()), "  a\nbcd")

  def test_csv(self):
    found = table_lib.of([{"a": "x,y", "b": 1 / 3}, {"a": 2, "b": None}])
    self.assertEqual(table_lib.to_csv(found), 'a,b\n"x,y",0.3333333333333333\n2,\n')
    self.assertEqual(table_lib.to_csv(found, digits=2), 'a,b\n"x,y",0.33\n2,\n')
    with self.assertRaises(KeyError):
      table_lib.of([{"a": 1}, {"b": 2}])

  def test_markdown(self):
    found = table_lib.make("t", ["what", "ms", "ratio"], [["a", 8.0, 2], [None, 1 / 3, 1 / 3]])
    head = "| what | ms | ratio |\n| --- | --- | --- |\n"
    for digits, want in (
        (None, "| a | 8 | 2 |\n| – | 0.33333 | 0.33333 |"),
        (2, "| a | 8.00 | 2.000 |\n| – | 0.33 | 0.333 |"),
    ):
      self.assertEqual(table_lib.to_markdown(found, digits), head + want)

  def test_latex(self):
    rows = [["a_b", "x %"], ["1 ± 2", "~{c}\\d^"]]
    self.assertEqual(
        table_lib.to_latex(table_lib.make("", rows[0], rows[1:])),
        "\\begin{tabular}{ll}\n\\toprule\n"
        "a\\_b & x \\% \\\\\n\\midrule\n"
        "1 $\\pm$ 2 & \\textasciitilde{}\\{c\\}\\textbackslash{}d"
        "\\textasciicircum{} \\\\\n\\bottomrule\n\\end{tabular}\n",
    )
