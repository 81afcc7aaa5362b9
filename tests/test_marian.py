"Marian checkpoints of many shapes, against the library that they come from."

import io
import json
import os
import shutil
from functools import partial

import pytest
import sentencepiece as spm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_answers import code_with
from torch.utils.data import DataLoader

from annotated_transformer import UserError
from annotated_transformer.data.batch import pad_ids
from annotated_transformer.data.grammar import builtin
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.export.ct2 import export_ct2
from annotated_transformer.export.hugging_face import export_hf
from annotated_transformer.export.marian import (
    MARIAN_FILES,
    MarianVocab,
    build_marian,
    import_marian,
    marian_search,
    read_marian_config,
    read_marian_weights,
)
from annotated_transformer.runs.folder import read_config, use_average
from annotated_transformer.show.explorer import write_attention_page
from annotated_transformer.show.live import write_live_page
from annotated_transformer.translating.divide import divide
from annotated_transformer.translating.files import ScoreOptions, score_files
from annotated_transformer.translating.load import load

transformers = pytest.importorskip(
    "transformers", reason="needs the library that published checkpoints were made for"
)
transformers.utils.logging.disable_progress_bar()

# Sizes that differ on the two sides, and activations.
SIZES = """vocab_size d_model encoder_layers decoder_layers encoder_attention_heads
decoder_attention_heads encoder_ffn_dim decoder_ffn_dim max_position_embeddings
activation_function scale_embedding decoder_start_token_id""".split()
OPUS = dict(zip(SIZES, (60, 32, 2, 2, 4, 4, 64, 64, 512, "swish", True, 59)))
OWN = dict(zip(SIZES, (203, 24, 3, 1, 1, 2, 24, 50, 40, "relu", False, 2)))
SHAPES = {"opus": OPUS, "own start": OWN}


def sentences(vocab_size: int, n: int, longest: int):
    "Ids of n random sentences with their ends, padded, and the mask that their library wants."
    rng = torch.Generator().manual_seed(n)
    words = torch.randint(3, vocab_size - 1, (n, longest), generator=rng).tolist()
    rows = [[*row[: 1 + k % longest], 0] for k, row in enumerate(words)]
    ids = pad_ids(rows, vocab_size - 1)
    return ids, (ids != vocab_size - 1).long()


def random_marian(shape: dict, n_steps: int, is_opus: bool = True):
    "Their model, whose biases are not 0 and gains not 1; a few steps of training make it say different things to different sources."
    pad = shape["vocab_size"] - 1
    symbols = {"pad_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0}
    torch.manual_seed(0)
    model = transformers.MarianMTModel(
        transformers.MarianConfig(**symbols | shape, dropout=0.0, init_std=0.1)
    )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight), alpha=0.1)
        model.final_logits_bias.normal_()
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    src, mask = sentences(pad + 1, 32, 9)
    tgt = sentences(pad + 1, 33, 17)[0][1:]
    labels = tgt.masked_fill(tgt == pad, -100)
    for _ in range(n_steps):
        model(src, mask, labels=labels).loss.backward()
        adam.step()
        adam.zero_grad()
    if is_opus:
        model.generation_config.bad_words_ids = [[pad]]
        model.generation_config.renormalize_logits = True
    return model.eval()


@pytest.fixture(scope="module", params=SHAPES)
def taught(request, tmp_path_factory):
    "In float64: no rounding tips the balance between two words. Their probabilities are float32 in both libraries."
    theirs = random_marian(SHAPES[request.param], 70, request.param == "opus")
    folder = tmp_path_factory.mktemp("taught")
    theirs.save_pretrained(folder)
    config = read_marian_config(folder)
    ours = build_marian(config).eval()
    ours.load_state_dict(read_marian_weights(folder, config))
    return theirs.double(), ours.double(), config


# the model


@torch.no_grad()
def test_logits_of_padded_batches(taught):
    theirs, ours, config = taught
    src, mask = sentences(config.vocab_size, 24, 15)
    tgt, real = sentences(config.vocab_size, 24, 11)
    start = torch.full((24, 1), config.decoder_start_token_id)
    tgt_in = torch.cat([start, tgt[:, :-1]], dim=1)
    wanted = theirs(src, mask, decoder_input_ids=tgt_in).logits
    found = ours.embedding.logits(ours(src, tgt_in))
    assert wanted.std() > 1  # they are sure of something
    assert (found - wanted)[real.bool()].abs().max() < 1e-5


# the search


@pytest.mark.parametrize("n_beams, alpha", [(2, 1.7), (4, 0.0)])
@torch.no_grad()
def test_beam_search_is_theirs(taught, n_beams, alpha):
    "Every one of the n best, in their order, with their scores; some end, and some are cut off."
    theirs, ours, config = taught
    src, mask = sentences(config.vocab_size, 16, 9)
    search = partial(
        batched_beam_search,
        beam_size=n_beams,
        n_best=n_beams,
        penalty=lambda n: n**alpha,
    )
    decoder, limits = KVCache(ours, attends_padding=True), torch.full((16,), 9)
    found = marian_search(config, search)(
        decoder.step,
        decoder.start(src),
        config.decoder_start_token_id,
        config.eos_token_id,
        limits,
    )
    theirs_found = theirs.generate(
        src,
        attention_mask=mask,
        num_beams=n_beams,
        max_length=9 + 2,  # start and end count
        do_sample=False,
        num_return_sequences=n_beams,
        return_dict_in_generate=True,
        output_scores=True,
        length_penalty=alpha,
        early_stopping="never",
    )
    eos = config.eos_token_id  # the end is forced at the latest
    rows = [row[1 : row.index(eos, 1)] for row in theirs_found.sequences.tolist()]
    hypotheses = [h for of_sentence in found for h in of_sentence]
    assert [h.ids for h in hypotheses] == rows
    # sums of 13 float32 numbers
    ours_scores = torch.tensor([h.score for h in hypotheses])
    scores = theirs_found.sequences_scores
    torch.testing.assert_close(ours_scores, scores, atol=1e-4, rtol=1e-5)
    assert max(map(len, rows)) == 9 and (alpha > 1 or min(map(len, rows)) < 9)


# the words


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A whole checkpoint: random weights, and words of the built-in text, with two language codes."
    folder = tmp_path_factory.mktemp("whole") / "opus-mt-en-de"
    text, pieces = builtin(1500, seed=0), set()
    folder.mkdir()
    for name, lines, kind in (
        ("source.spm", [s.en for s in text], "unigram"),
        ("target.spm", [s.de for s in text], "bpe"),
    ):
        out = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=out,
            vocab_size=150,
            model_type=kind,
            num_threads=1,
            minloglevel=2,
        )
        (folder / name).write_bytes(out.getvalue())
        model = spm.SentencePieceProcessor(model_proto=out.getvalue())
        pieces |= {model.id_to_piece(i) for i in range(3, len(model))}
    pieces -= {"▁the", "er"}  # a model may cut pieces that the list lacks
    names = ["</s>", "<unk>", *sorted(pieces), ">>deu<<", ">>fra<<", "<pad>"]
    ids = {piece: i for i, piece in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    shape = OPUS | {"vocab_size": len(ids), "max_position_embeddings": 128}
    shape["decoder_start_token_id"] = ids["<pad>"]
    theirs = random_marian(shape, 60)
    theirs.generation_config.num_beams = 3
    theirs.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def vocab(folder):
    return MarianVocab(folder, read_marian_config(folder))


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "new" / "en-de"
    import_marian(folder, run)
    return run


LINES = [s.en for s in builtin(50, seed=3)]
LINES += [">>fra<< The dog sleeps.", ">>deu<<The dog", ">>xyz<< unknown", ">> no code"]
LINES += [
    "a >>deu<< b",
    ">>deu<<",
    "",
    " ",
    "  two  spaces ",
    "🐕 über Straße",
    "a\x00b",
]
LINES += ["ﬁne ① ﷽", "tab\there", "\u2581 sign", "no\u00a0break", "\u200b"]
PLAIN = st.text(max_size=40).filter(
    lambda s: not any(word in s for word in ("</s>", "<unk>", "<pad>"))
)  # symbols for them, text for us


WORDS = st.lists(st.sampled_from(" ".join(LINES).split(" "))).map(" ".join)


@settings(max_examples=60)
@given(PLAIN | WORDS)
def test_ids_of_any_text_are_theirs(vocab, tokenizer, text):
    for line in [text, *LINES]:
        assert [*vocab.encode(line), vocab.eos_id] == tokenizer(line).input_ids


@settings(max_examples=200)
@given(st.data())
def test_text_of_any_ids_is_theirs(vocab, tokenizer, data):
    "By their default, which writes with the source's model, and by the target's, as we do."
    ids = data.draw(st.lists(st.integers(0, len(vocab) - 1), max_size=12))
    decode = partial(tokenizer.decode, ids, skip_special_tokens=True)
    assert vocab.decode(ids) == decode() == decode(use_source_tokenizer=False)


# folder to run to text


def test_long_lines_keep_their_code(vocab):
    line = " ".join(s.en for s in builtin(4, seed=5))
    ids_of = lambda line: [ids for ids in divide(line, vocab, 10) if ids != " "]
    (code,), first, parts = (
        vocab.encode(">>deu<<"),
        ids_of(line),
        ids_of(">>deu<< " + line),
    )
    assert len(parts) > 3 and all(part[0] == code for part in parts)
    assert [i for part in first for i in part] == vocab.encode(line)
    assert [i for part in parts for i in part if i != code] == vocab.encode(line)


def test_an_imported_run(folder, run, tmp_path):
    "One of version 1.0.0 has one more entry; what needs a run that was trained here refuses both."
    names = {*MARIAN_FILES, "config.json", "model.safetensors"}
    assert {file.name for file in run.iterdir()} == names
    old = shutil.copytree(run, tmp_path / "old")
    values = json.loads((old / "config.json").read_text())
    values["marian"]["ban_pad"] = True
    (old / "config.json").write_text(json.dumps(values))
    assert load(old).translate(LINES[:5]) == load(run).translate(LINES[:5])
    commands = {  # that the message names
        "train": read_config,
        "average": partial(use_average, n=1),
        "live": partial(write_live_page, out=tmp_path / "live.html"),
        "other exports": partial(export_ct2, out=tmp_path / "ct2"),
        "--engine ctranslate2": partial(load, engine="ctranslate2"),
    }
    for name, command in commands.items():
        with pytest.raises(UserError, match=f"from Marian: .*attention.*; .*{name}"):
            command(run)
    scoring = [run], [tmp_path / "ref"], tmp_path / "src", ScoreOptions(perplexity=True)
    for file in ("ref", "src"):
        (tmp_path / file).write_text("A dog.\n")
    with pytest.raises(UserError, match="trained here, and this one was imported"):
        next(score_files(*scoring))  # before it translates
    write_attention_page(load(run), LINES[:1], tmp_path / "attention.html")


def test_fine_tuning_of_the_answers(folder, tokenizer, tmp_path, monkeypatch):
    "The loop that the page of answers shows: the loss falls, and the result can be imported."
    monkeypatch.chdir(tmp_path)
    model = transformers.MarianMTModel.from_pretrained(folder)
    pairs = [(s.en, s.de) for s in builtin(8, seed=2)]
    space = {"torch": torch, "nn": torch.nn, "DataLoader": DataLoader}
    space |= {"tokenizer": tokenizer, "model": model, "pairs": pairs}

    def loss() -> float:
        batch = space["collate"](pairs)
        assert (batch["labels"] == -100).any() and batch["labels"].min() == -100
        with torch.no_grad():
            return model(**batch).loss.item()

    code = code_with("def collate")
    exec(code.replace("range(3)", "range(0)"), space)  # nothing is trained
    before = loss()
    exec(code.replace("2e-5", "2e-3"), space)  # a rate for random weights
    assert loss() < before - 0.1
    import_marian(tmp_path / "tuned", tmp_path / "run")
    assert len(load(tmp_path / "run").translate(["The dog sleeps."])) == 1


def test_in_and_out(folder, run, tmp_path):
    "Exported again: each weight, and all that decides the search, as it came."
    out = export_hf(run, tmp_path / "hub")
    before, after = (load_file(one / "model.safetensors") for one in (folder, out))
    assert all(torch.equal(before[name], weight) for name, weight in after.items())
    theirs = transformers.MarianMTModel.from_pretrained(out).generation_config
    settings = json.loads((folder / "generation_config.json").read_text())
    for name in ("num_beams", "length_penalty", "bad_words_ids", "forced_eos_token_id"):
        assert getattr(theirs, name) == settings.get(name, 1.0), name
    assert theirs.renormalize_logits and theirs.early_stopping == "never"
    reader = transformers.MarianTokenizer.from_pretrained(out)
    ours = MarianVocab(run, read_marian_config(folder))
    for line in LINES[:5]:
        assert reader(line).input_ids == [*ours.encode(line), ours.eos_id]


def test_older_folders(folder, run, tmp_path):
    "No generation_config.json, copies of the matrix, the table of positions."
    old = shutil.copytree(folder, tmp_path / "old")
    settings = json.loads((old / "generation_config.json").read_text())
    (old / "generation_config.json").unlink()
    values = json.loads((old / "config.json").read_text())
    for key in ("bad_words_ids", "num_beams", "renormalize_logits"):
        values[key] = settings[key]
    (old / "config.json").write_text(json.dumps(values))
    weights = load_file(old / "model.safetensors")
    shared = weights.pop("model.shared.weight")
    weights["lm_head.weight"] = shared.clone()
    weights["model.encoder.embed_tokens.weight"] = shared.clone()
    weights["model.encoder.embed_positions.weight"] = torch.ones(128, 32)
    save_file(weights, old / "model.safetensors")
    import_marian(old, tmp_path / "run")
    for name in ("config.json", "model.safetensors", *MARIAN_FILES):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()


# what is refused


def with_settings(**values):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def with_half(name):
    return lambda folder: os.truncate(folder / name, 1000)


REFUSED = [
    (with_settings(activation_function="mish"), "='mish' is not supported, only 're"),
    (with_settings(encoder_layers=None), "config.json does not contain encoder_layers"),
    (with_settings(encoder_layers=3), 'Missing key.* "encoder.layers.2.self_attn'),
    (with_half("vocab.json"), "vocab.json cannot be read"),
    (with_half("target.spm"), "target.spm is not a SentencePiece"),
]


@pytest.mark.parametrize("change, message", REFUSED)
def test_what_is_wrong_is_named_and_nothing_is_written(
    folder, tmp_path, change, message
):
    change(shutil.copytree(folder, tmp_path / "changed"))
    with pytest.raises(UserError, match=message):
        import_marian(tmp_path / "changed", tmp_path / "runs" / "new")
    assert [file.name for file in tmp_path.iterdir()] == ["changed"]


def test_a_pickle_is_not_opened(folder, tmp_path):
    "And the way that the message names leads to the same weights."
    old = shutil.copytree(folder, tmp_path / "old")
    theirs = transformers.MarianMTModel.from_pretrained(folder)
    torch.save(theirs.state_dict(), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    says = "is a pickle, which may run any code and is not read"
    with pytest.raises(UserError, match=says) as refused:
        import_marian(old, tmp_path / "run")
    exec(str(refused.value).split("convert it: ")[1], {"transformers": transformers})
    config = read_marian_config(folder)
    weights = read_marian_weights(old, config)
    for name, weight in read_marian_weights(folder, config).items():
        assert torch.equal(weights[name], weight)
