"""The walk through the modules from a command to the first logits.

python walk.py RUN FILE    translates FILE with RUN on the command line, and prints each stay, as JSON
python walk.py --show …    the same for a reader

A reader who follows the program meets its functions and classes in the order in which they are first used. Each is read
once. A stay is a row of those from one module; the modules of section 3, and the twin of one of them, count as one,
"model", because a reader of the command line knows the model. What runs only because a module is imported is left out.
"""

import json
import sys
from pathlib import Path

import annotated_transformer

LIB = Path(annotated_transformer.__file__).parent
MODEL = {
    "stack",
    "attention",
    "multi_head",
    "masking",
    "feed_forward",
    "embedding",
    "position",
    "transformer",
    "fused_attention",  # the twin of multi_head
}


class Walk:
    "A profile function that notes each function and class of the package when it is first used."

    def __init__(self):
        self.met: set[tuple[str, str]] = set()
        self.stays: list[tuple[str, list[str]]] = []
        self.importing = 0
        self.done = False

    def __call__(self, frame, event, arg) -> None:
        code = frame.f_code
        if self.done or event not in ("call", "return"):
            return
        if code.co_name == "<module>":
            self.importing += {"call": 1, "return": -1}[event]
        elif Path(code.co_filename).parent == LIB and not self.importing:
            if event == "call":
                self.note(Path(code.co_filename).stem, code.co_qualname.split(".")[0])
            elif code.co_name == "logits":
                self.done = True

    def note(self, module: str, definition: str) -> None:
        if (module, definition) in self.met:
            return
        self.met.add((module, definition))
        name = "model" if module in MODEL else module
        if not self.stays or self.stays[-1][0] != name:
            self.stays.append((name, []))
        self.stays[-1][1].append(definition)


def main(run: str, file: str) -> list[tuple[str, list[str]]]:
    from annotated_transformer import cli

    walk = Walk()
    sys.setprofile(walk)
    try:
        cli.main(["translate", run, file, "--quiet"])
    except SystemExit as e:
        if e.code:
            raise
    finally:
        sys.setprofile(None)
    assert walk.done, "no logits were computed"
    return walk.stays


if __name__ == "__main__":
    show = sys.argv[1] == "--show"
    found = main(*sys.argv[1 + show :])
    modules = {module for module, _ in found}
    if show:
        for module, definitions in found:
            print(f"{module:12}", *definitions)
        print(
            f"{len(found)} stays in {len(modules)} modules, {len(found) - len(modules)} returns"
        )
    else:
        print(json.dumps(found))
