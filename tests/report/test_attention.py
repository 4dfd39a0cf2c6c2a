import numpy as np
import pytest
from PIL import Image

from jaxmarl_llm.report.attention import plot_attention


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (7, 2, 17)])
def test_a_panel_for_each_head(shape, tmp_path):
    weights = np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:2])
    plain = plot_attention(weights, tmp_path / "plots" / "plain.png", keys=[f"token {i}" for i in range(shape[-1])])
    marked = plot_attention(weights, tmp_path / "marked.png", marked=weights[0] == weights[0].max(), mark_label="most")
    with Image.open(plain) as one, Image.open(marked) as other:
        assert min(one.size) > 100 and one.tobytes() != other.tobytes()


def test_dollars_are_no_formulas(tmp_path):
    # As a formula, which lacks a brace, it could not be drawn.
    name = "$\\frac{$"
    texts = {"queries": [name, "b"], "keys": [name, "b", "c"], "mark_label": name, "title": name}
    path = plot_attention(np.ones((1, 2, 3)) / 3, tmp_path / "x.png", marked=np.ones((2, 3), bool), **texts)
    assert path.is_file()


def test_wrong_shapes(tmp_path):
    with pytest.raises(ValueError, match="index the batch axes first"):
        plot_attention(np.zeros((2, 3, 4, 5)), tmp_path / "x.png")
    with pytest.raises(ValueError, match="but 2 and 5 names"):
        plot_attention(np.zeros((2, 3, 5)), tmp_path / "x.png", queries=["a", "b"])
