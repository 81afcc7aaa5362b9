"Marian checkpoints of many shapes, against the library that they come from."

import io
import json
import pickle
import shutil
from dataclasses import replace
from functools import partial

import pytest
import sentencepiece as spm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from annotated_transformer.data.batch import pad_ids
from annotated_transformer.data.grammar import builtin
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.export.hugging_face import export_hf
from annotated_transformer.model.position import positional_encoding
from annotated_transformer.runs.folder import load_run, read_config, run_kind
from annotated_transformer.translating.load import load
from annotated_transformer.translating.marian import (
    _COPIES,
    _TABLES,
    MarianConfig,
    build_marian,
    in_halves,
)
from annotated_transformer.translating.marian_import import (
    MARIAN_FILES,
    MarianVocab,
    _marian_search,
    _MarianTranslator,
    _read_marian,
    _read_marian_weights,
    _with_marian_rules,
    fine_tune_marian,
    import_marian,
)
from annotated_transformer.translating.translate import translate_stream

transformers = pytest.importorskip(
    "transformers", reason="needs the library that published checkpoints were made for"
)
transformers.utils.logging.disable_progress_bar()

# Sizes that differ on the two sides, every activation, tables of positions shorter and longer than ours.
SIZES = (
    "vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "max_position_embeddings",
    "activation_function",
    "scale_embedding",
)
SHAPES = {
    name: dict(zip(SIZES, sizes))
    for name, sizes in {
        "opus": (60, 32, 2, 2, 4, 4, 64, 64, 512, "swish", True),
        "relu": (37, 48, 1, 3, 3, 6, 70, 40, 40, "relu", False),
        "own start": (203, 24, 3, 1, 1, 2, 24, 50, 2048, "gelu", True),
    }.items()
}
SHAPES["own start"]["decoder_start_token_id"] = 2
OPUS_RULES = {"bad_words_ids", "renormalize_logits"}
RULES = {"opus": OPUS_RULES, "relu": {"bad_words_ids"}, "own start": set()}


def random_ids(vocab_size: int, shape: tuple[int, ...]) -> torch.Tensor:
    "Ids of words: no symbol, and no padding."
    rng = torch.Generator().manual_seed(shape[0])
    return torch.randint(3, vocab_size - 1, shape, generator=rng)


def sentences(vocab_size: int, n: int, longest: int):
    "Ids of n random sentences with their ends, padded, and the mask that their library wants."
    words = random_ids(vocab_size, (n, longest)).tolist()
    rows = [[*row[: 1 + k % longest], 0] for k, row in enumerate(words)]
    ids = pad_ids(rows, vocab_size - 1)
    return ids, (ids != vocab_size - 1).long()


def random_marian(shape: dict, rules: set, n_steps: int = 0):
    "Their model with random weights: no bias is 0, no gain is 1. A few steps of training make it say different things to different sources."
    pad = shape["vocab_size"] - 1
    symbols = {
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }
    torch.manual_seed(0)
    model = transformers.MarianMTModel(
        transformers.MarianConfig(
            **symbols | shape, dropout=0.0, init_std=0.1 if n_steps else 0.5
        )
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
    if "bad_words_ids" in rules:
        model.generation_config.bad_words_ids = [[pad]]
    model.generation_config.renormalize_logits = "renormalize_logits" in rules
    return model.eval()


def imported(theirs, folder):
    "Their model, ours with its weights, and our settings."
    theirs.save_pretrained(folder)
    config = _read_marian(folder)
    ours = build_marian(config).eval()
    ours.load_state_dict(_read_marian_weights(folder, config))
    return theirs, ours, config


@pytest.fixture(scope="module", params=SHAPES)
def both(request, tmp_path_factory):
    return imported(
        random_marian(SHAPES[request.param], RULES[request.param]),
        tmp_path_factory.mktemp("random"),
    )


@pytest.fixture(scope="module", params=SHAPES)
def taught(request, tmp_path_factory):
    "In float64: no rounding tips the balance between two words. Their probabilities are float32 in both libraries."
    theirs = random_marian(SHAPES[request.param], RULES[request.param], n_steps=70)
    theirs, ours, config = imported(theirs, tmp_path_factory.mktemp("taught"))
    return theirs.double(), ours.double(), config


# the model


@torch.no_grad()
def test_logits_of_padded_batches(both):
    theirs, ours, config = both
    src, mask = sentences(config.vocab_size, 24, 15)
    tgt, real = sentences(config.vocab_size, 24, 11)
    start = torch.full((24, 1), config.decoder_start_token_id)
    tgt_in = torch.cat([start, tgt[:, :-1]], dim=1)
    wanted = theirs(src, mask, decoder_input_ids=tgt_in).logits
    found = ours.embedding.logits(ours(src, tgt_in))
    assert wanted.std() > 1  # they are sure of something
    # float32 has seven digits, the logits two before the point
    assert (found - wanted)[real.bool()].abs().max() < 1e-4


@torch.no_grad()
def test_every_table_of_positions(both):
    "As long as theirs goes; ours goes on."
    theirs, ours, config = both
    src = random_ids(config.vocab_size, (1, config.max_position_embeddings))
    wanted = theirs.model.encoder(src).last_hidden_state
    torch.testing.assert_close(ours.encode(src)[0], wanted, atol=1e-4, rtol=0)
    assert ours.encode(torch.cat([src, src], dim=1))[0].isfinite().all()


# the search


def generate(theirs, src, mask, n_beams, alpha, max_len, n_best):
    "Their n best of each sentence, each with its score; their limit counts start and end symbol."
    eos, more = theirs.config.eos_token_id, {}
    if n_beams > 1:
        more = {"length_penalty": alpha, "early_stopping": "never"}
    with torch.no_grad():
        found = theirs.generate(
            src,
            attention_mask=mask,
            num_beams=n_beams,
            max_length=max_len + 2,
            do_sample=False,
            num_return_sequences=n_best,
            return_dict_in_generate=True,
            output_scores=True,
            **more,
        )
    # the end is forced at the latest
    rows = [row[1 : row.index(eos, 1)] for row in found.sequences.tolist()]
    scores = found.sequences_scores.tolist() if n_beams > 1 else [None] * len(rows)
    pairs = list(zip(rows, scores, strict=True))
    return [pairs[i : i + n_best] for i in range(0, len(rows), n_best)]


@torch.no_grad()
def ours_found(ours, config, src, search, limits):
    decoder, ends = KVCache(ours), (config.decoder_start_token_id, config.eos_token_id)
    search = _with_marian_rules(search, config)
    limits = torch.as_tensor(limits).expand(len(src)).clone()
    return search(decoder.step, decoder.start(src), *ends, limits)


N, MAX_LEN = 16, 9


def test_greedy_search_is_theirs(taught):
    theirs, ours, config = taught
    src, mask = sentences(config.vocab_size, N, 9)
    found = ours_found(ours, config, src, batched_greedy_search, MAX_LEN)
    wanted = generate(theirs, src, mask, 1, 1.0, MAX_LEN, 1)
    said = [best.ids for (best,) in found]
    assert said == [ids for ((ids, _),) in wanted]
    assert len(set(map(tuple, said))) > N // 2  # something, and not all the same


@pytest.mark.parametrize("n_beams, alpha", [(2, 1.7), (4, 0.0), (5, 0.6)])
def test_beam_search_is_theirs(taught, n_beams, alpha):
    "Every one of the n best, in their order, with their scores; some end, and some are cut off."
    theirs, ours, config = taught
    src, mask = sentences(config.vocab_size, N, 9)
    changed = replace(config, num_beams=n_beams, length_penalty=alpha)
    search = partial(_marian_search(changed), n_best=n_beams)
    found = ours_found(ours, config, src, search, MAX_LEN)
    wanted = generate(theirs, src, mask, n_beams, alpha, MAX_LEN, n_beams)
    ids = [[h.ids for h in those] for those in found]
    assert ids == [[ids for ids, _ in those] for those in wanted]
    scores = torch.tensor([[h.score for h in those] for those in found])
    their_scores = torch.tensor([[score for _, score in those] for those in wanted])
    # sums of 13 float32 numbers
    torch.testing.assert_close(scores, their_scores, atol=1e-4, rtol=1e-5)
    lengths = [len(row) for rows in ids for row in rows]
    assert max(lengths) == MAX_LEN and (alpha > 1 or min(lengths) < MAX_LEN)


def test_padding_is_said_unless_it_is_forbidden(both):
    _, ours, config = both
    pad, src = config.pad_token_id, sentences(config.vocab_size, 4, 5)[0]
    bias = ours.embedding.bias.data
    before = bias[0, pad].item()
    bias[0, pad] = 1000
    try:
        found = ours_found(ours, config, src, batched_greedy_search, 6)
    finally:
        bias[0, pad] = before
    assert any(pad in best.ids for (best,) in found) != config.ban_pad


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
    shape = SHAPES["opus"] | {"vocab_size": len(ids), "max_position_embeddings": 128}
    theirs = random_marian(shape, OPUS_RULES, n_steps=60)
    theirs.generation_config.num_beams = 3
    theirs.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def vocab(folder):
    return MarianVocab(folder, _read_marian(folder))


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "new" / "en-de"
    import_marian(folder, run)
    return run


LINES = [
    *(s.en for s in builtin(50, seed=3)),
    ">>fra<< The dog sleeps.",
    ">>deu<<The dog",
    ">>xyz<< unknown",
    ">> no code",
    "a >>deu<< b",
    ">>deu<<",
    "",
    " ",
    "  two  spaces ",
    "🐕 über Straße",
    "ﬁne ① ﷽",
    "tab\there",
    "\u2581 sign",
    "no\u00a0break",
    "\u200b",
    "a\x00b",
]
PLAIN = st.text(max_size=40).filter(
    lambda s: not any(word in s for word in ("</s>", "<unk>", "<pad>"))
)  # symbols for them, text for us


@settings(max_examples=60)
@given(
    st.one_of(
        PLAIN, st.lists(st.sampled_from(" ".join(LINES).split(" "))).map(" ".join)
    )
)
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


def test_translations_are_theirs(folder, run, tokenizer):
    "Their whole way, a line at a time, since their limit is one for all lines; in any batch and order of ours."
    theirs = transformers.MarianMTModel.from_pretrained(folder).double().eval()
    translator, wanted = load(run), []
    translator.model.double()
    lines = [line for line in LINES[46::2] if line.strip() and line != "\u200b"]
    for line in lines:
        batch = tokenizer(line, return_tensors="pt")
        longest = batch.input_ids.size(1) + 51  # at most 50 pieces more than the source
        with torch.no_grad():
            (best,) = theirs.generate(
                **batch, early_stopping="never", max_length=longest
            )
        wanted.append(tokenizer.decode(best, skip_special_tokens=True))
    assert translator.translate(lines) == wanted and len(set(wanted)) > len(lines) // 2
    translator.batch_tokens = 40
    assert translator.translate(["", *lines[::-1]]) == ["", *wanted[::-1]]


def test_a_search_of_ones_own(run):
    "It keeps the rules: no padding, and an end at the limit."
    lines = LINES[:5]
    greedy = load(run, search=batched_greedy_search).translate(lines)
    assert greedy != load(run).translate(lines)
    three = load(run, search=partial(batched_beam_search, beam_size=3, n_best=3))
    assert [len(those) for those in three.n_best(lines)] == [3] * 5


def test_long_lines_keep_their_code(folder, vocab):
    model = build_marian(_read_marian(folder))
    translator = _MarianTranslator(model, vocab, max_tokens=10)
    line = " ".join(s.en for s in builtin(4, seed=5))
    code, first = vocab.encode(">>deu<<")[0], translator.split(line)
    parts = translator.split(">>deu<< " + line)
    assert len(parts) > 3 and all(part[0] == code for part in parts)
    assert [i for part in first for i in part] == vocab.encode(line)
    assert [i for part in parts for i in part if i != code] == vocab.encode(line)


def test_an_imported_run(folder, run):
    "It translates streams too; what needs a run that was trained here refuses it."
    names = {*MARIAN_FILES, "config.json", "model.safetensors"}
    assert {file.name for file in run.iterdir()} == names
    assert [file.name for file in run.parent.iterdir()] == ["en-de"]
    values = json.loads((run / "config.json").read_text())
    assert MarianConfig(**values["marian"]) == _read_marian(folder)
    groups = [[b"The dog sleeps.\n", b"\n"], [b"A cat.\n"]]
    said = [best.text for best, *_ in translate_stream(load(run), groups)]
    assert len(said) == 3 and said[1] == ""
    assert (run_kind(run), run_kind("demo")) == ("marian", None)
    assert type(load(run)) is _MarianTranslator is not type(load("demo"))
    for read in (read_config, load_run):
        with pytest.raises(ValueError, match="was imported from Marian: it translates"):
            read(run)


def test_the_whole_way_in_and_out(run, tokenizer, tmp_path):
    "Imported, trained further on a few pairs, exported: `transformers` translates them as we do."
    pairs = [(s.en, s.de) for s in builtin(12, seed=7)]
    before, losses = load(run), []
    see = lambda record: losses.append(record.loss)
    fine_tune_marian(run, pairs, tmp_path / "tuned", 40, 3e-3, 300, hooks=[see])
    assert losses[-1] < losses[0] - 1
    tuned, lines = load(tmp_path / "tuned"), [en for en, _ in pairs]
    found = tuned.translate(lines)
    assert found != before.translate(lines)
    old, new = (
        load_file(one / "model.safetensors") for one in (run, tmp_path / "tuned")
    )
    assert torch.equal(old["embedding.bias"], new["embedding.bias"])
    export_hf(tmp_path / "tuned", tmp_path / "hub")
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "hub").eval()
    reader = transformers.MarianTokenizer.from_pretrained(tmp_path / "hub")
    for line, ours in zip(lines, found):
        batch = reader(line, return_tensors="pt")
        assert batch.input_ids.equal(tokenizer(line, return_tensors="pt").input_ids)
        longest = batch.input_ids.size(1) + 51
        with torch.no_grad():
            (best,) = theirs.generate(**batch, max_length=longest)
        assert reader.decode(best, skip_special_tokens=True) == ours


def test_older_folders(folder, run, tmp_path):
    "No generation_config.json, copies of the matrix, the table of positions."
    old = shutil.copytree(folder, tmp_path / "old")
    settings = json.loads((old / "generation_config.json").read_text())
    (old / "generation_config.json").unlink()
    values = json.loads((old / "config.json").read_text())
    values |= {"extra_pos_embeddings": 9, "static_position_embeddings": True}
    for key in ("bad_words_ids", "num_beams", "renormalize_logits"):
        values[key] = settings[key]
    (old / "config.json").write_text(json.dumps(values))
    weights = load_file(old / "model.safetensors")
    weights |= {name: weights[_COPIES[0]].clone() for name in _COPIES}
    weights |= {name: in_halves(positional_encoding(128, 32)) for name in _TABLES}
    del weights[_COPIES[0]]  # what is left says it as well
    save_file(weights, old / "model.safetensors")
    import_marian(old, tmp_path / "run")
    for name in ("config.json", "model.safetensors", *MARIAN_FILES):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()


# what is refused


def changed(folder, to, name, change):
    "A copy of the checkpoint, one file of it changed."
    copied = shutil.copytree(folder, to / "changed")
    if name.endswith(".json"):
        values = json.loads((copied / name).read_text())
        (copied / name).write_text(json.dumps(change(values) or values))
    elif name == "model.safetensors":
        weights = load_file(copied / name)
        change(weights)
        save_file(weights, copied / name)
    else:
        (copied / name).write_bytes(change((copied / name).read_bytes()))
    return copied


def put(**values):
    return lambda file: file.update(values)


CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS = "model.safetensors"
REFUSED = [
    (CONFIG, put(tie_word_embeddings=False), "tie_word_embeddings=False is not supp"),
    (CONFIG, put(decoder_vocab_size=7), "decoder_vocab_size=7 is not supported"),
    (CONFIG, put(d_model=33), "d_model=33 must be even and a multiple of encoder_att"),
    (CONFIG, put(d_model=36), "has shape"),
    (CONFIG, put(encoder_layers=3), "lacks the weight model.encoder.layers.2.self_at"),
    (CONFIG, put(decoder_layers=1), "which this model has not"),
    (
        CONFIG,
        put(decoder_ffn_dim=10**18),
        "decoder_ffn_dim=1000000000000000000 must be",
    ),
    (CONFIG, put(scale_embedding=1), "scale_embedding=1 must be true or false"),
    (CONFIG, put(encoder_layers=None), "config.json lacks encoder_layers$"),
    (CONFIG, lambda v: [v], "holds no JSON object"),
    (CONFIG, put(format=1), "is a run of annotated_transformer already"),
    (GENERATION, put(no_repeat_ngram_size=3), "no_repeat_ngram_size=3 is not supp"),
    (GENERATION, put(forced_eos_token_id=4), "forced_eos_token_id=4 is not supported"),
    (GENERATION, put(decoder_start_token_id=-1), "start_token_id=-1 must be at least"),
    (GENERATION, put(num_beams=0), "num_beams=0 must be at least 1"),
    ("vocab.json", lambda v: v | {"</s>": 1}, "each once"),
    ("source.spm", lambda b: b"", "source.spm is not a SentencePiece model"),
    ("target.spm", lambda b: b[: len(b) // 2], "target.spm is not a SentencePiece"),
    (WEIGHTS, lambda w: w.pop("final_logits_bias"), "lacks the weight final_logits_b"),
    (WEIGHTS, put(more=torch.zeros(1)), "has a weight more, which this model has not"),
    (WEIGHTS, put(final_logits_bias=torch.zeros(1, 9)), r"has shape \(1, 9\)"),
    (WEIGHTS, lambda w: w["final_logits_bias"].fill_(torch.nan), "that are not finite"),
    (WEIGHTS, lambda w: w.update({"lm_head.weight": w[_COPIES[0]] + 1}), "one matrix"),
    (WEIGHTS, lambda w: w.pop(_COPIES[0]), f"lacks the weight {_COPIES[0]}"),
]


@pytest.mark.parametrize("name, change, message", REFUSED)
def test_what_is_wrong_is_named_and_nothing_is_written(
    folder, tmp_path, name, change, message
):
    wrong = changed(folder, tmp_path, name, change)
    with pytest.raises(ValueError, match=message):
        import_marian(wrong, tmp_path / "runs" / "new")
    assert [file.name for file in tmp_path.iterdir()] == ["changed"]


def test_a_pickle_is_not_opened(folder, tmp_path, monkeypatch):
    "And the way that the message names leads to a run, with the same weights."
    old, unpickled = shutil.copytree(folder, tmp_path / "old"), []
    theirs = transformers.MarianMTModel.from_pretrained(folder)
    torch.save(theirs.state_dict(), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    says = "is a pickle, which may run any code and is not read"
    with monkeypatch.context() as patched:
        for module, name in (
            (torch, "load"),
            (pickle, "load"),
            (pickle, "loads"),
            (pickle, "Unpickler"),
        ):
            patched.setattr(module, name, unpickled.append)
        with pytest.raises(ValueError, match=says) as refused:
            import_marian(old, tmp_path / "run")
        import_marian(folder, tmp_path / "other")
    assert unpickled == []
    exec(str(refused.value).split("convert it: ")[1], {"transformers": transformers})
    import_marian(old, tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for name, weight in load_file(tmp_path / "other" / "model.safetensors").items():
        assert torch.equal(weights[name], weight)
