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
    rows = [{"a": "x,y", "b": 1 / 3}, {"a": 2, "b": None}]
    self.assertEqual(table_lib.to_csv(rows), 'a,b\n"x,y",0.3333333333333333\n2,\n')
    self.assertEqual(table_lib.to_csv(rows, digits=2), 'a,b\n"x,y",0.33\n2,\n')
    with self.assertRaises(ValueError):
      table_lib.to_csv([{"a": 1}, {"b": 2}])

  def test_markdown(self):
    self.assertEqual(
        table_lib.to_markdown(_ROWS[:2]),
        "| mode | ms | note |\n| --- | --- | --- |\n| lazy | 8.5 | a |",
    )

  def test_latex(self):
    rows = [["a_b", "x %"], ["1 ± 2", "~{c}\\d^"]]
    self.assertEqual(
        table_lib.to_latex(rows),
        "\\begin{tabular}{ll}\n\\toprule\n"
        "a\\_b & x \\% \\\\\n\\midrule\n"
        "1 $\\pm$ 2 & \\textasciitilde{}\\{c\\}\\textbackslash{}d"
        "\\textasciicircum{} \\\\\n\\bottomrule\n\\end{tabular}\n",
    )
