"A notebook that uses all the dialect that pages know."

from pathlib import Path

from test_gate import cell, notebook

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DRAWING = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 90 20" fill="currentColor"><a href="31_stack.ipynb#deviations"><text y="15">stack</text></a>
<a href="index.ipynb"><text x="50" y="15">home</text></a></svg>
"""


def write_trial(root: Path) -> None:
    "Put the notebook trial, and its drawings, into a copy of the checkout."
    picture = [
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {"image/png": PIXEL, "text/plain": "<Figure>"},
        }
    ]
    captioned = [
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {
                "text/markdown": "**Figure.** A dot: $z$",
                "text/plain": "<Markdown>",
            },
        }
    ]
    linked = [
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {"text/markdown": "[out](../LICENSE)", "text/plain": "<Markdown>"},
        }
    ]
    boxed = [
        {
            "output_type": "execute_result",
            "metadata": {},
            "execution_count": None,
            "data": {
                "text/html": "<b>bold</b> ``` <iframe title=box></iframe>",
                "text/plain": "<HTML>",
            },
        }
    ]
    said = [{"output_type": "stream", "name": "stdout", "text": "x" * 400 + "\n~~~~\n"}]
    (root / "nbs/images").mkdir(exist_ok=True)
    (root / "nbs/images/trial_map.svg").write_text(DRAWING)
    (root / "nbs/images/trial_dot.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="4"/></svg>'
    )
    notebook(
        root / "nbs/trial.ipynb",
        cell("# Trial\n> A width $d_k$ · §9", "markdown"),
        cell("#| default_exp trial"),
        cell(
            "#| export\ndef twice(\n    x: int,  # a number\n) -> int:    # its double\n    'Two of it.'\n    return 2 * x"
        ),
        cell(
            "See @fig-dot and @fig-trial-dot, and\n$$\\frac{a}{b} = "
            + " + ".join(["c_i"] * 60)
            + " \\tag{7}$$\nat last.",
            "markdown",
        ),
        cell(
            '::: {.callout-note title="Mind" collapse="true"}\nFolded $y$.\n:::\n\n::: {.callout-tip}\n## Hint\nTry.\n:::',
            "markdown",
        ),
        cell('<pre><code>print("it\'s", 1) --beam ...</code></pre>', "markdown"),
        cell("#| hide\nsecret = 1"),
        cell("#| echo: false\nunseen = 1"),
        cell("#| code-fold: true\nfolded = 1") | {"outputs": said},
        cell(
            '#| label: fig-dot\n#| fig-cap: "A dot: $z$"\n#| fig-alt: "One \\"dark\\" dot"\ndraw()'
        )
        | {"outputs": picture + captioned},
        cell(
            '![a file](images/trial_dot.svg)\n\n**Figure.** File\n\n![A "map"](images/trial_map.svg)\n\n'
            '[stack](31_stack.ipynb#deviations) [home](../LICENSE) <a href="../LICENSE">raw</a>',
            "markdown",
        ),
        cell("#| echo: false\ntable()") | {"outputs": linked},
        cell("#| label: fig-box\n#| fig-cap: A box\nbox()") | {"outputs": boxed},
    )
    quarto = (root / "_quarto.yml").read_text(encoding="utf-8")
    (root / "_quarto.yml").write_text(
        quarto.replace("\nmetadata-files", "          - trial.ipynb\n\nmetadata-files"),
        encoding="utf-8",
    )
