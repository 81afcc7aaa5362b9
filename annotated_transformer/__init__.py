__version__ = "1.0.0"

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
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_OFFERED[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_OFFERED]
