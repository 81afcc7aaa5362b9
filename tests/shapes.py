"Every shape in the package's signatures is checked while the tests run: see conftest.py."

import inspect
from collections.abc import Callable

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do as a float


def check(function: Callable) -> Callable:
    "The function with its arguments and result checked, if a shape is among its types."
    annotations = inspect.get_annotations(function).values()
    return _check(function) if any(map(_has_shape, annotations)) else function


def _has_shape(annotation) -> bool:
    if inspect.isclass(annotation):
        return issubclass(annotation, AbstractArray)
    return any(map(_has_shape, getattr(annotation, "__args__", ())))
