"Pictures: sweeps over models, bytes that repeat, colours measured, and the attention page in a real browser."
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from itertools import combinations

import pytest
import torch

from annotated_transformer.config import ModelConfig
from annotated_transformer.transformer import build_transformer
from annotated_transformer.visualize import (
    COLOURS,
    PAGE_STYLE,
    SHADES,
    AttentionExample,
    attention_chart,
    attention_lines,
    attention_maps,
    attention_page,
    heatmap,
    lines,
    panels,
    show_chart,
)


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


# --- maps -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
@pytest.mark.parametrize("n_heads, d_k, d_v", [(1, None, None), (4, None, None), (2, 3, 5)])
def test_maps_explain_every_output(norm, position, n_heads, d_k, d_v):
    torch.manual_seed(0)
    config = ModelConfig(n_layers=3, d_model=16, d_ff=32, n_heads=n_heads, d_k=d_k, d_v=d_v, norm=norm, position=position)
    model = build_transformer(config, n_vocab=30, pad_id=0, dropout=0.3, attention_dropout=0.3).train()
    src, tgt_in = torch.randint(1, 30, (3, 7)), torch.randint(1, 30, (3, 5))
    src[1, 4:], tgt_in[2, 3:] = 0, 0
    seen, hooks = {}, []
    for module in (m for m in model.modules() if hasattr(m, "w_o")):
        hooks.append(module.register_forward_hook(lambda module, args, output: seen.update({module: (args, output)})))
    maps = attention_maps(model, src, tgt_in)
    for hook in hooks: hook.remove()
    for kind, parts in {"encoder": [layer.self_attn for layer in model.encoder.layers],
                        "decoder": [layer.self_attn for layer in model.decoder.layers],
                        "cross": [layer.cross_attn for layer in model.decoder.layers]}.items():
        for weights, attn in zip(maps[kind], parts, strict=True):
            (query, key, value, mask), output = seen[attn]
            heads = weights @ attn.keys_values(key, value)[1]
            # two orders of summation in fp32
            torch.testing.assert_close(attn.w_o(heads.transpose(1, 2).flatten(2)), output, atol=1e-5, rtol=1e-4)
            assert not weights.masked_select(~mask.expand_as(weights)).any()
        assert not maps[kind].requires_grad
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


# --- figures ----------------------------------------------------------------------------------------------------------------

def png_of(draw) -> bytes:
    import matplotlib.pyplot as plt
    fig = draw().figure
    fig.savefig(out := io.BytesIO(), format="png")
    plt.close(fig)
    return out.getvalue()


@pytest.mark.parametrize("draw", [
    lambda: heatmap(torch.eye(5), list("abcde"), list("abcde"), x="x", y="y", numbers=True),
    lambda: lines({"a": (range(1, 9), range(8)), "b": (torch.arange(1, 9), torch.ones(8))}, x="step", y="loss", log_x=True),
    lambda: attention_lines(["$a", "b"], ["c", "d_e", "^"], torch.full((2, 3), 1 / 3)),
    lambda: panels(2, 3)[1][5],
])
def test_figures_repeat_and_set_nothing_global(draw):
    import matplotlib
    matplotlib.use("Agg")
    before = dict(matplotlib.rcParams)
    assert png_of(draw) == png_of(draw)
    assert dict(matplotlib.rcParams) == before


def test_importing_draws_in_no_drawing_library():
    assert run_python("import sys, annotated_transformer.visualize\n"
                      "print([m for m in ('matplotlib', 'altair', 'vl_convert') if m in sys.modules])") == "[]\n"


def test_charts_repeat_between_processes_and_share_no_ids():
    code = "import json\nfrom annotated_transformer.visualize import attention_chart, show_chart\n" \
           "c = show_chart(attention_chart(['a', 'b'], ['\"', \"'\"], [[.1, .9], [.5, .5]]))\nprint(json.dumps(c.spec), c.svg)"
    assert run_python(code) == run_python(code)
    one, two = (show_chart(attention_chart(["a"], ["b"], [[w]])).svg for w in (0.25, 0.75))
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, two)]
    assert ids[0] and not ids[0] & ids[1]
    assert ids[0] == set(re.findall(r"url\(#([^)]+)\)", one))
    for where in re.findall(r"https?://[^\"' ]+", one): assert where.startswith("http://www.w3.org/")  # names, not addresses


def luminance(colour: str) -> float:
    "Relative luminance of #rrggbb, as WCAG defines it."
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def contrast(one: str, two: str) -> float:
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def mixed(over: str, under: str, opacity: float) -> str:
    return "#" + "".join(f"{round(int(over[i:i + 2], 16) * opacity + int(under[i:i + 2], 16) * (1 - opacity)):02x}" for i in (1, 3, 5))


def test_colours_can_be_told_apart_in_grey():
    shades = [luminance(c) for c in SHADES]
    assert shades == sorted(shades, reverse=True)
    for one, two in combinations(COLOURS[:3], 2): assert contrast(one, two) > 1.3  # beyond three, the dash helps
    assert all(contrast(c, "#ffffff") > 1.9 for c in COLOURS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_contrast(scheme):
    blocks = re.findall(r":root \{(.*?)\}", PAGE_STYLE, re.S)
    colour = dict(re.findall(r"--(\w+): (#\w{6})", blocks[scheme == "dark"]))
    strongest = float(re.search(r"opacity: calc\(var\(--weight, 0\) \* ([\d.]+)\)", PAGE_STYLE)[1])
    pairs = [("ink", colour["paper"]), ("ink", colour["panel"]), ("muted", colour["paper"]), ("paper", colour["accent"])]
    pairs += [("ink", mixed(colour[mark], colour["paper"], strongest)) for mark in ("accent", "other")]
    for text, ground in pairs: assert contrast(colour[text], ground) >= 4.5, (text, ground)
    for line in ("accent", "other"): assert contrast(colour[line], colour["paper"]) >= 3


# --- the page as text -------------------------------------------------------------------------------------------------------

RUDE = ["</script>", "<script>bad()</script>", "<!--", "]]>", "&lt;", '"', "'", "\\",
        "\u2028", "\x00", "\ud800", "", " ", "${x}", "{PAGE_BODY}", "🙂", "שלום"]


def data_of(page: str) -> list:
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def test_rude_words_stay_words():
    n = len(RUDE)
    page = attention_page([AttentionExample(RUDE, RUDE, {"cross": torch.eye(n)[None, None]})], title='"><script>bad()</script>')
    assert data_of(page)[0]["src"] == RUDE
    assert "<script>bad" not in page and page.count("<script") == 2 and page.count("</script") == 2
    assert "<!--" not in page


def test_page_names_no_other_host():
    page = attention_page([AttentionExample(["a"], ["b"], {"cross": [[[[1.0]]]]})])
    assert not re.search(r"//\w|@import|url\(|<link|<img|\bsrc=|\bhref=", page)
    assert "default-src 'none'" in page and '<html lang="en">' in page


def test_weights_are_rounded():
    page = attention_page([AttentionExample(["a", "b"], ["c"], {"cross": torch.tensor([[[[1 / 3, 2 / 3]]]])})])
    assert data_of(page)[0]["maps"]["cross"] == [[[[0.333, 0.667]]]]


# --- the page in a browser --------------------------------------------------------------------------------------------------

@pytest.fixture(scope="session")
def chromium() -> str:
    "The browser; as root on Debian it is installed if it is missing."
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if not found and shutil.which("apt-get") and os.geteuid() == 0:
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
            try: subprocess.run(command, capture_output=True, timeout=300, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
            except subprocess.TimeoutExpired: break
        found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        line = "NO BROWSER: chromium is not installed, so the attention page was NOT opened in one. Install it and run pytest again."
        warnings.warn(line, stacklevel=1)
        if os.environ.get("CI"): print(f"\n::warning::{line}", file=sys.__stderr__)
        pytest.skip(line)
    return found


def in_browser(chromium: str, folder, page: str, script: str, width: int = 1200, scheme: str = "light") -> dict:
    "Open the page in a frame of the given width, run the script in it, and return what it returns."
    page = page.replace("</body>", f"<script>addEventListener('load', () => setTimeout(() => {{ let r; try {{ r = (() => {{ {script} }})(); }}"
                                   " catch (e) { r = {error: String(e)}; } parent.postMessage(JSON.stringify(r), '*'); }, 100));</script></body>")
    (folder / "frame.html").write_text(
        "<!doctype html><meta charset='utf-8'><pre id='answer'></pre><script>addEventListener('message', e => answer.textContent = e.data)</script>"
        f"<iframe style='width:{width}px;height:800px;border:0' srcdoc=\"{html.escape(page)}\"></iframe>", encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000",
             f"--blink-settings=preferredColorScheme={int(scheme == 'light')}", "--window-size=1300,900", "--dump-dom"]
    done = subprocess.run([chromium, *flags, (folder / "frame.html").as_uri()], capture_output=True, text=True, timeout=120)
    answer = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.S)
    assert answer and answer[1], f"the page gave no answer\n{done.stdout[:500]}\n{done.stderr[-2000:]}"
    return json.loads(html.unescape(answer[1]))


@pytest.fixture(scope="module")
def page() -> str:
    torch.manual_seed(0)
    draw = lambda n_q, n_k, causal=False: torch.randn(2, 4, n_q, n_k).masked_fill(torch.ones(n_q, n_k).triu(1).bool() & causal, -1e9).softmax(-1)
    def example(src, tgt):
        s, t = len(src), len(tgt)
        return AttentionExample(src, tgt, {"encoder": draw(s, s), "decoder": draw(t, t, True), "cross": draw(t, s)})
    return attention_page([example("The animal did n't cross the street .".split(), "<s> Das Tier überquerte die Straße nicht .".split()),
                           example(["Donaudampfschifffahrtsgesellschaftskapitän"] * 3 + RUDE[:3], ["<s>", "b"])], title="A & B")


LOOK = """
const q = [...document.querySelectorAll('#q button')], k = [...document.querySelectorAll('#k button')];
const seen = () => [...document.querySelectorAll('#lines path')].filter(p => p.style.display !== 'none');
const told = () => document.getElementById('reading').textContent;
const pick = (name, i) => document.querySelectorAll(`#${name} input`)[i].click();
"""


def test_page_works_by_hand(chromium, tmp_path, page):
    got = in_browser(chromium, tmp_path, page, LOOK + """
        const all = seen().length, start = told(), opacity = +seen()[0].getAttribute('stroke-opacity');
        q[1].focus(); const focused = seen(), focusedTold = told();
        q[1].blur(); const after = seen().length;
        k[2].click(); const from = seen().map(p => p.dataset.k), by = told(), pressed = k[2].getAttribute('aria-pressed');
        document.querySelectorAll('#heads button')[3].click(); const kept = told();
        document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'})); const free = seen().length > 8;
        return {all, start, opacity, focused: focused.map(p => p.dataset.q), focusedTold, after, from, by, pressed, kept, free,
                title: document.title, heads: document.querySelectorAll('#heads canvas').length};""")
    weights = data_of(page)[0]["maps"]["encoder"][0]
    assert got["all"] == got["after"] == sum(w >= 0.005 for row in weights[0] for w in row)
    assert got["opacity"] == weights[0][0][0]
    assert set(got["focused"]) == {"1"} and set(got["from"]) == {"2"} and got["pressed"] == "true" and got["free"]
    top = max(range(8), key=lambda j: weights[0][1][j])
    words = "The animal did n't cross the street .".split()
    assert got["focusedTold"].startswith(f"animal looks at: {words[top]} {weights[0][1][top]:.2f}")
    assert got["by"].startswith("did is looked at by: ") and got["kept"].startswith("did is looked at by: ") and got["by"] != got["kept"]
    assert got["title"] == "A & B" and got["heads"] == 4


def test_page_changes_kind_layer_and_sentence(chromium, tmp_path, page):
    got = in_browser(chromium, tmp_path, page, LOOK + """
        const texts = id => [...document.querySelectorAll(`#${id} button`)].map(b => b.textContent), told0 = told();
        pick('kind', 2); pick('layer', 1); const cross = [texts('q'), texts('k')], opacity = +seen()[0].getAttribute('stroke-opacity');
        pick('kind', 1); const ahead = seen().filter(p => +p.dataset.k > +p.dataset.q).length;
        const list = document.getElementById('sentence'); list.value = '1'; list.dispatchEvent(new Event('change'));
        return {cross, opacity, ahead, second: texts('q'), checked: document.querySelector('#kind input:checked').value,
                layer: document.querySelector('#layer input:checked').value, bad: typeof bad};""")
    first = data_of(page)[0]
    assert got["cross"] == [first["tgt"], first["src"]] and got["opacity"] == first["maps"]["cross"][1][0][0][0]
    assert got["ahead"] == 0 and got["second"] == ["<s>", "b"]
    assert (got["checked"], got["layer"], got["bad"]) == ("decoder", "1", "undefined")


def test_page_works_by_keyboard(chromium, tmp_path, page):
    got = in_browser(chromium, tmp_path, page, LOOK + """
        const press = key => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
        q[0].focus(); press('ArrowDown'); press('ArrowDown'); const down = document.activeElement === q[2];
        press('ArrowUp'); const up = document.activeElement === q[1];
        const named = [...document.querySelectorAll('button, select, input')].filter(e => e.tabIndex < 0
            || !(e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML);
        return {down, up, named};""")
    assert got == {"down": True, "up": True, "named": []}


@pytest.mark.parametrize("sentence", [0, 1])
def test_page_fits_a_phone(chromium, tmp_path, page, sentence):
    got = in_browser(chromium, tmp_path, page, f"""showSentence({sentence}); point({{side: 'k', i: 1}});
        const wide = document.documentElement;
        return {{width: innerWidth, scroll: wide.scrollWidth,
            small: [...document.querySelectorAll('button, .choices span')].filter(e => Math.min(e.offsetHeight, e.offsetWidth) < 16
                || e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML)}};""", width=390)
    assert got == {"width": 390, "scroll": 390, "small": []} or got == {"width": 390, "scroll": 375, "small": []}  # with a scroll bar


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_follows_the_readers_scheme(chromium, tmp_path, page, scheme):
    got = in_browser(chromium, tmp_path, page, """const dark = matchMedia('(prefers-color-scheme: dark)').matches;
        return {dark, ground: getComputedStyle(document.body).backgroundColor};""", scheme=scheme)
    assert got == {"dark": scheme == "dark", "ground": "rgb(18, 23, 29)" if scheme == "dark" else "rgb(255, 255, 255)"}
