#!/usr/bin/env python
"""Print a constraints file of the lowest versions that settings.ini allows for the package's own requirements.

    tools/lowest.py > lowest.txt

`torch>=2.11` becomes `torch==2.11.*`. All else keeps the version of constraints.txt.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
settings = (ROOT / "settings.ini").read_text(encoding="utf-8")
found = {}
for requirement in re.search(r"^requirements *= *(.*)$", settings, re.M)[1].split():
    match = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
    if not match:
        sys.exit(f"settings.ini: {requirement} is not of the form name>=version")
    found[match[1]] = f"{match[1]}=={match[2]}.*"
print("\n".join(found.values()))
for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n"):
    if line and not line.startswith("#") and line.split("==")[0] not in found:
        print(line)
