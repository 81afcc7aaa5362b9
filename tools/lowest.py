#!/usr/bin/env python
"""Print a constraints file of the lowest versions that settings.ini allows for the package's own requirements.

    tools/lowest.py > lowest.txt

`torch>=2.11` becomes `torch==2.11.*`. All else keeps the version of constraints.txt.
"""

import re
import sys

from notebooks import ROOT, settings


def lowest(requirements: list[str]) -> dict[str, str]:
    "Name of a requirement → the lowest series of versions that it allows."
    found = {}
    for requirement in requirements:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
        if not match:
            sys.exit(
                f"settings.ini: {requirement} has no lower bound of the form name>=version"
            )
        found[match[1]] = f"{match[1]}=={match[2]}.*"
    return found


def main() -> None:
    found = lowest(settings()["requirements"].split())
    print("\n".join(found.values()))
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#") and line.split("==")[0] not in found:
            print(line)


if __name__ == "__main__":
    main()
