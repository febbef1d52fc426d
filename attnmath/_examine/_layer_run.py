"""A layer run on a problem: its output and all gradients."""

from collections.abc import Mapping

import numpy as np

from attnmath._examine._calls import message
from attnmath._examine._layer_case import LayerAnswer, LayerCase
from attnmath._examine._layer_described import Broken, Layer
from attnmath._examine._layer_libraries import RUNNERS, array, by_numpy, lent, tensors


def run(
    layer: Layer, case: LayerCase, numbers: Mapping[str, np.ndarray], dtype: str, train: bool = False
) -> LayerAnswer:
    """What the layer returns for the case with these numbers as parameters; raises Broken."""
    runner = RUNNERS.get(layer.framework, by_numpy)
    try:
        Y, back = runner(layer, case, numbers, dtype, train)
    except Broken:
        raise
    except KeyboardInterrupt:  # the reader's
        raise
    except BaseException as error:
        raise Broken("raises", f"it raises {message(error, 300)}") from error
    want = dict(X=case.X.shape, **layer.shapes) | ({"Z": case.Z.shape} if case.Z is not None else {})
    _fits("the output", Y, case.dY.shape)
    for name, shape in want.items():
        _fits(f"the gradient of {name}", back.get(name), shape)
    dW = layer.ours({name: back[name] for name in layer.parameters})
    return LayerAnswer.of(Y, back["X"], None if case.Z is None else back["Z"], dW)


def forward(layer: Layer, case: LayerCase, numbers: Mapping[str, np.ndarray], dtype: str) -> np.ndarray:
    """The output alone, without a way back, as a layer is used for inference."""
    if layer.framework != "torch":
        return run(layer, case, numbers, dtype).Y
    import torch

    with torch.no_grad(), lent(layer, numbers, dtype, False, False):
        try:
            Y = layer.call(*tensors(case, dtype))
        except KeyboardInterrupt:  # the reader's
            raise
        except BaseException as error:
            line = f"it raises under torch.no_grad(): {message(error, 300)}"
            raise Broken("raises", line) from error
        return array("the output", Y)


def _fits(what: str, x: np.ndarray | None, shape: tuple[int, ...]) -> None:
    if x is None:
        raise Broken("gradient_missing", f"{what} is missing")
    if x.shape != tuple(shape):
        raise Broken("shape", f"{what} has shape {x.shape}; it needs {tuple(shape)}")
