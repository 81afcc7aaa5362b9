"All metadata stands in settings.ini; this file hands it to setuptools."

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
config = ConfigParser(delimiters=["="])
config.read(here / "settings.ini", encoding="utf-8")
cfg = config["DEFAULT"]
readme = here / "README.md"


class WithRecords(build_py):
    "The package, with the records that notebooks read; in a checkout these are beside it."

    def run(self):
        super().run()
        for folder in () if self.editable_mode else ("results", "reference"):
            to = Path(self.build_lib, cfg["lib_path"], folder)
            self.mkpath(str(to))
            for path in (here / folder).glob("*.json"):
                self.copy_file(str(path), str(to))


setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    author=cfg["author"],
    license_expression=cfg["license"],  # SPDX; needs setuptools >= 77
    license_files=["LICENSE"],
    keywords=cfg["keywords"].split(),
    url=cfg["git_url"],
    classifiers=[
        "Programming Language :: Python :: 3",
        f"Intended Audience :: {cfg['audience']}",
    ],
    python_requires=f">={cfg['min_python']}",
    packages=find_packages(include=[f"{cfg['lib_path']}*"]),
    include_package_data=False,  # what is installed is named here, not in MANIFEST.in
    cmdclass={"build_py": WithRecords},
    package_data={
        cfg["lib_path"]: [
            "py.typed",
            "data/lexicon.txt",
            "show/pages/*",
            "pretrained/*/*",
        ]
    },
    install_requires=cfg["requirements"].split(),
    extras_require={
        k.removesuffix("_requirements"): v.split()
        for k, v in cfg.items()
        if k.endswith("_requirements")
    },
    # nbdev finds the names that notebooks mention in `backticks` by this entry, and links them.
    entry_points={
        "console_scripts": cfg["console_scripts"].split(),
        "nbdev": [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
    },
)
