"What preview.py's processes share: imported by the one from which they are forked."

import execnb.shell  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import nbdev.processors  # noqa: F401
import nbdev.showdoc  # noqa: F401
import pypandoc  # noqa: F401
from pages import names_of_package

names_of_package()  # cached: it parses the whole package
