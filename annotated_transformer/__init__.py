__version__ = "1.0.0"

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # so that editors and mypy know what `__getattr__` imports
    from .data.corpus import load_corpus as load_corpus
    from .model.transformer import Transformer as Transformer
    from .model.transformer import build_transformer as build_transformer
    from .runs.settings import get_recipe as get_recipe
    from .runs.train_run import train_run as train_run
    from .translating.load import load as load
    from .translating.translate import Translator as Translator

_OFFERED = {
    "load": "translating.load",
    "Translator": "translating.translate",
    "Transformer": "model.transformer",
    "build_transformer": "model.transformer",
    "get_recipe": "runs.settings",
    "load_corpus": "data.corpus",
    "train_run": "runs.train_run",
}
__all__ = ["UserError", *_OFFERED]


class UserError(ValueError):
    "What the user gave cannot be used: the message names it, its value and what would be right; the command line prints that alone."


def __getattr__(name: str):
    "What `from annotated_transformer import …` offers, imported when it is asked for: the package itself loads no torch."
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_OFFERED[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_OFFERED]
