__version__ = "0.1.0"

_OFFERED = {
    "load": "translate",
    "Translator": "translate",
    "Transformer": "transformer",
    "build_transformer": "transformer",
    "get_recipe": "config",
    "load_corpus": "corpus",
    "train_run": "runs",
}
__all__ = ["UserError", *_OFFERED]


class UserError(ValueError):
    "What the user gave cannot be used: the message names it, its value and what would be right; the command line prints that alone."


def __getattr__(name: str):
    "What `from annotated_transformer import …` offers, imported when it is asked for: the package itself loads no torch."
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, _, inside = _OFFERED[name].partition(".")
    return getattr(import_module(f"{__name__}.{module}"), inside or name)


def __dir__() -> list[str]:
    return [*globals(), *_OFFERED]
