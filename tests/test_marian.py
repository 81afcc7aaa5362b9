"Marian checkpoints of many shapes, against the library that they come from."

import io
import json
import os
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
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    eos_among_best,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.model.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.model.position import positional_encoding
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import (
    create_run,
    load_run,
    read_config,
    run_kind,
    write_config,
)
from annotated_transformer.runs.weights import save_weights
from annotated_transformer.show.visualize import attention_maps
from annotated_transformer.translating.load import load
from annotated_transformer.translating.marian import (
    _COPIES,
    _TABLES,
    MarianConfig,
    build_marian,
    in_halves,
    marian_names,
)
from annotated_transformer.translating.marian_import import (
    _FILES,
    _ONLY,
    MarianVocab,
    _marian_search,
    _MarianTranslator,
    _read_marian,
    _read_marian_weights,
    _with_marian_rules,
    import_marian,
)
from annotated_transformer.translating.translate import (
    Translator,
    translate_stream,
)

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
        "gelu": (203, 24, 3, 1, 1, 2, 24, 50, 2048, "gelu", True),
        "own start": (50, 16, 2, 1, 2, 2, 32, 32, 512, "silu", False),
    }.items()
}
SHAPES["own start"]["decoder_start_token_id"] = 2
OPUS_RULES = {"bad_words_ids", "renormalize_logits"}
RULES = {
    "opus": OPUS_RULES,
    "relu": {"bad_words_ids"},
    "gelu": OPUS_RULES,
    "own start": set(),
}


def sentences(vocab_size: int, n: int, longest: int):
    "Ids of n random sentences with their ends, padded, and the mask that their library wants."
    rng = torch.Generator().manual_seed(n)
    rows = [
        [
            *torch.randint(
                3, vocab_size - 1, (1 + k % longest,), generator=rng
            ).tolist(),
            0,
        ]
        for k in range(n)
    ]
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
    adam, (src, mask), (tgt, _) = (
        torch.optim.Adam(model.parameters(), lr=5e-3),
        sentences(pad + 1, 32, 9),
        sentences(pad + 1, 33, 17),
    )
    for _ in range(n_steps):
        model(
            src, mask, labels=tgt[1:].masked_fill(tgt[1:] == pad, -100)
        ).loss.backward()
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
    tgt_in = torch.cat(
        [torch.full((24, 1), config.decoder_start_token_id), tgt[:, :-1]], dim=1
    )
    wanted = theirs(src, mask, decoder_input_ids=tgt_in).logits
    found = ours.embedding.logits(ours(src, tgt_in))
    difference = (found - wanted)[real.bool()].abs().max()
    assert wanted.std() > 1  # they are sure of something
    assert (
        difference < 1e-4
    )  # float32 has seven digits, the logits two before the point


@torch.no_grad()
def test_every_table_of_positions(both):
    "As long as theirs goes; ours goes on."
    theirs, ours, config = both
    n = config.max_position_embeddings
    src = torch.randint(
        3, config.vocab_size - 1, (1, n), generator=torch.Generator().manual_seed(0)
    )
    wanted = theirs.model.encoder(src).last_hidden_state
    torch.testing.assert_close(
        ours.encode(src)[0], wanted, atol=1e-4, rtol=0
    )  # as above
    assert ours.encode(torch.cat([src, src], dim=1))[0].isfinite().all()


@torch.no_grad()
def test_step_by_step_is_all_at_once(both):
    _, ours, config = both
    src, _ = sentences(config.vocab_size, 6, 9)
    tgt_in = torch.randint(
        3, config.vocab_size - 1, (6, 7), generator=torch.Generator().manual_seed(0)
    )
    tgt_in[:, 0] = config.decoder_start_token_id
    at_once, state = (
        ours.embedding.logits(ours(src, tgt_in)).log_softmax(dim=-1),
        KVCache(ours).start(src),
    )
    for t in range(7):
        log_probs, state = KVCache(ours).step(tgt_in[:, t : t + 1], state)
        torch.testing.assert_close(log_probs[:, 0], at_once[:, t], atol=1e-4, rtol=0)


@torch.no_grad()
def test_pictures_of_attention(both):
    "The start symbol is padding, and is looked at."
    _, ours, config = both
    src, _ = sentences(config.vocab_size, 3, 7)
    tgt_in = torch.tensor([[config.decoder_start_token_id, 4, 5]] * 3)
    maps = attention_maps(ours, src, tgt_in)
    assert (
        maps["decoder"].shape[0] == config.decoder_layers
        and maps["encoder"].shape[2] == config.encoder_attention_heads
    )
    for weights in maps.values():
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))


def test_a_float16_checkpoint_becomes_float32(tmp_path):
    theirs = random_marian(SHAPES["opus"], OPUS_RULES).half()
    theirs.save_pretrained(tmp_path)
    weights = _read_marian_weights(tmp_path, _read_marian(tmp_path))
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert torch.equal(
        weights["encoder.layers.1.self_attn.w_v.bias"],
        theirs.model.encoder.layers[1].self_attn.v_proj.bias.float(),
    )


# the search


def generate(theirs, src, mask, n_beams, alpha, max_len, n_best):
    "Their n best of each sentence, each with its score; their limit counts start and end symbol."
    eos = theirs.config.eos_token_id
    more = (
        {
            "length_penalty": alpha,
            "early_stopping": "never",
            "num_return_sequences": n_best,
        }
        if n_beams > 1
        else {}
    )
    with torch.no_grad():
        found = theirs.generate(
            src,
            attention_mask=mask,
            num_beams=n_beams,
            max_length=max_len + 2,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **more,
        )
    rows = [
        row[1 : row.index(eos, 1)] if eos in row[1:] else None
        for row in found.sequences.tolist()
    ]
    assert None not in rows  # the end is forced at the latest
    scores = found.sequences_scores.tolist() if n_beams > 1 else [None] * len(rows)
    return [
        list(zip(rows[i : i + n_best], scores[i : i + n_best]))
        for i in range(0, len(rows), n_best)
    ]


def ours_found(ours, config, src, search, max_len):
    with torch.no_grad():
        state = KVCache(ours).start(src)
    bos, eos = config.decoder_start_token_id, config.eos_token_id
    return _with_marian_rules(search, config)(
        KVCache(ours).step, state, bos, eos, torch.full((len(src),), max_len)
    )


N, MAX_LEN = 16, 9


def test_greedy_search_is_theirs(taught):
    theirs, ours, config = taught
    src, mask = sentences(config.vocab_size, N, 9)
    found = ours_found(ours, config, src, batched_greedy_search, MAX_LEN)
    assert [best.ids for (best,) in found] == [
        best[0] for (best,) in generate(theirs, src, mask, 1, 1.0, MAX_LEN, 1)
    ]
    assert (
        len({tuple(best.ids) for (best,) in found}) > N // 2
    )  # they say something, and not all the same


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 1.7])
@pytest.mark.parametrize("n_beams", [2, 4, 5])
def test_beam_search_is_theirs(taught, n_beams, alpha):
    "Every one of the n best, in their order, with their scores."
    theirs, ours, config = taught
    src, mask = sentences(config.vocab_size, N, 9)
    search = partial(
        _marian_search(replace(config, num_beams=n_beams, length_penalty=alpha)),
        n_best=n_beams,
    )
    found = ours_found(ours, config, src, search, MAX_LEN)
    wanted = generate(theirs, src, mask, n_beams, alpha, MAX_LEN, n_beams)
    assert [[h.ids for h in those] for those in found] == [
        [ids for ids, _ in those] for those in wanted
    ]
    scores = torch.tensor(
        [
            [[h.score, score] for h, (_, score) in zip(*pair)]
            for pair in zip(found, wanted)
        ]
    )
    torch.testing.assert_close(
        scores[..., 0], scores[..., 1], atol=1e-4, rtol=1e-5
    )  # sums of 13 float32 numbers


def test_some_sentences_end_and_some_are_cut_off(taught):
    "Else the tests above would not have tried the rule of the last place."
    _, ours, config = taught
    src, _ = sentences(config.vocab_size, N, 9)
    found = ours_found(
        ours,
        config,
        src,
        partial(batched_beam_search, beam_size=4, n_best=4, may_end=eos_among_best),
        MAX_LEN,
    )
    lengths = [len(h.ids) for those in found for h in those]
    assert min(lengths) < MAX_LEN == max(lengths)


def test_a_limit_of_its_own_for_each_sentence(taught):
    theirs, ours, config = taught
    src, mask = sentences(config.vocab_size, 8, 9)
    limits, search = (
        torch.tensor([0, 1, 2, 3, 5, 8, 13, 20]),
        _marian_search(replace(config, num_beams=4)),
    )
    with torch.no_grad():
        state = KVCache(ours).start(src)
    found = _with_marian_rules(search, config)(
        KVCache(ours).step,
        state,
        config.decoder_start_token_id,
        config.eos_token_id,
        limits,
    )
    for i, limit in enumerate(limits.tolist()):
        assert (
            found[i][0].ids
            == generate(theirs, src[i : i + 1], mask[i : i + 1], 4, 1.0, limit, 1)[0][
                0
            ][0]
        )


def test_padding_is_said_unless_it_is_forbidden(taught):
    theirs, ours, config = taught
    weight, pad = ours.embedding.bias, config.pad_token_id
    before = weight[0, pad].item()
    with torch.no_grad():
        weight[0, pad] = 100
    try:
        found = [
            best.ids
            for (best,) in ours_found(
                ours,
                config,
                sentences(config.vocab_size, 4, 5)[0],
                batched_greedy_search,
                6,
            )
        ]
    finally:
        with torch.no_grad():
            weight[0, pad] = before
    assert any(pad in ids for ids in found) != config.ban_pad


# the words


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A whole checkpoint: random weights, and words of the built-in text, with two language codes."
    folder, text = (
        tmp_path_factory.mktemp("whole") / "opus-mt-en-de",
        builtin(1500, seed=0),
    )
    folder.mkdir()
    pieces = set()
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
    dropped = {"▁the", "er"}  # a model may cut pieces that the list lacks
    ids = {
        piece: i
        for i, piece in enumerate(
            ["</s>", "<unk>", *sorted(pieces - dropped), ">>deu<<", ">>fra<<", "<pad>"]
        )
    }
    (folder / "vocab.json").write_text(json.dumps(ids))
    theirs = random_marian(
        SHAPES["opus"] | {"vocab_size": len(ids), "max_position_embeddings": 128},
        OPUS_RULES,
        n_steps=60,
    )
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


@pytest.mark.parametrize("line", LINES)
def test_ids_are_theirs(vocab, tokenizer, line):
    assert [*vocab.encode(line), vocab.eos_id] == tokenizer(line).input_ids


@settings(max_examples=300)
@given(
    st.one_of(
        PLAIN, st.lists(st.sampled_from(" ".join(LINES).split(" "))).map(" ".join)
    )
)
def test_ids_of_any_text_are_theirs(vocab, tokenizer, text):
    assert [*vocab.encode(text), vocab.eos_id] == tokenizer(text).input_ids


def test_some_pieces_are_unknown(vocab):
    assert (
        vocab.unk_id in vocab.encode("🐕")
        and vocab.unk_id in vocab.encode("the dog of the man")
        and vocab.unk_id in vocab.encode(">>xyz<< dog")
    )


@settings(max_examples=300)
@given(st.data())
def test_text_of_any_ids_is_theirs(vocab, tokenizer, data):
    "By their default, which writes with the source's model, and by the target's, as we do."
    ids = data.draw(st.lists(st.integers(0, len(vocab) - 1), max_size=12))
    said = vocab.decode(ids)
    assert (
        said
        == tokenizer.decode(ids, skip_special_tokens=True)
        == tokenizer.decode(ids, skip_special_tokens=True, use_source_tokenizer=False)
    )


def test_targets_come_back(vocab, tokenizer):
    for s in builtin(50, seed=4):
        ids = tokenizer(text_target=s.de).input_ids
        assert vocab.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_vocabulary_is_what_a_translator_asks(vocab):
    ids = vocab.encode(">>deu<< The dog")
    assert (
        len(vocab.words(ids)) == len(ids)
        and vocab.words(ids)[0] == "▁>>deu<<"
        and len(vocab) == len(vocab.ids)
    )
    assert (vocab.pad_id, vocab.bos_id, vocab.eos_id) == (
        len(vocab) - 1,
        len(vocab) - 1,
        0,
    )


# folder to run to text


def test_translations_are_theirs(folder, run, tokenizer):
    "Their whole way, a line at a time, since their limit is one for all lines; at most 50 pieces more than the source."
    theirs, translator = (
        transformers.MarianMTModel.from_pretrained(folder).double().eval(),
        load(run),
    )
    translator.model.double()
    lines, wanted = (
        [line for line in LINES[45:] if line.strip() and line != "\u200b"],
        [],
    )
    for line in lines:
        batch = tokenizer(line, return_tensors="pt")
        with torch.no_grad():
            said = theirs.generate(
                **batch, early_stopping="never", max_length=batch.input_ids.size(1) + 51
            )
        wanted.append(tokenizer.decode(said[0], skip_special_tokens=True))
    assert translator.translate(lines) == wanted and len(set(wanted)) > len(lines) // 2


def test_batches_and_order_change_nothing(run):
    translator = load(run)
    translator.model.double()
    lines = LINES[25:]
    together = translator.translate(lines)
    translator.batch_tokens = 40
    assert (
        translator.translate(lines[::-1]) == together[::-1]
        and together[lines.index("")] == ""
    )


def test_a_search_of_ones_own(run):
    "It keeps the rules: no padding, and an end at the limit."
    lines = LINES[:5]
    assert load(run, search=batched_greedy_search).translate(lines) != load(
        run
    ).translate(lines)
    found = load(
        run, search=partial(batched_beam_search, beam_size=3, n_best=3)
    ).n_best(lines)
    assert [len(those) for those in found] == [3] * 5


def test_long_lines_keep_their_code(folder, vocab):
    config = _read_marian(folder)
    translator = _MarianTranslator(build_marian(config), vocab, max_tokens=10)
    line = " ".join(s.en for s in builtin(4, seed=5))
    code, first = vocab.encode(">>deu<<")[0], translator.split(line)
    parts = translator.split(">>deu<< " + line)
    assert len(parts) > 3 and all(part[0] == code for part in parts)
    assert (
        [i for part in parts for i in part if i != code]
        == [i for part in first for i in part]
        == vocab.encode(line)
    )
    assert list(translator.translate([">>deu<< " + line]))


def test_streams(run):
    said = [
        best.text
        for best, *_ in translate_stream(
            load(run), [[b"The dog sleeps.\n", b"\n"], [b"A cat.\n"]]
        )
    ]
    assert len(said) == 3 and said[1] == ""


def test_a_run_is_whole_and_ours(folder, run):
    assert sorted(file.name for file in run.iterdir()) == sorted(
        [*_FILES, "config.json", "model.safetensors"]
    )
    assert [file.name for file in run.parent.iterdir()] == ["en-de"]
    values = json.loads((run / "config.json").read_text())
    assert values["kind"] == "marian" and MarianConfig(
        **values["marian"]
    ) == _read_marian(folder)
    assert load_file(run / "model.safetensors").keys() == set(
        marian_names(_read_marian(folder)).values()
    )


def test_older_folders(folder, run, tmp_path):
    "No generation_config.json, copies of the matrix, the table of positions."
    old = shutil.copytree(folder, tmp_path / "old")
    settings = json.loads((old / "generation_config.json").read_text())
    values = json.loads((old / "config.json").read_text()) | {
        key: settings[key]
        for key in ("bad_words_ids", "num_beams", "renormalize_logits")
    }
    (old / "config.json").write_text(
        json.dumps(
            values | {"extra_pos_embeddings": 9, "static_position_embeddings": True}
        )
    )
    (old / "generation_config.json").unlink()
    weights = load_file(old / "model.safetensors")
    weights |= {name: weights[_COPIES[0]].clone() for name in _COPIES} | {
        name: in_halves(positional_encoding(128, 32)) for name in _TABLES
    }
    del weights[_COPIES[0]]  # what is left says it as well
    save_file(weights, old / "model.safetensors")
    import_marian(old, tmp_path / "run")
    for name in ("config.json", *_FILES):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        run / "model.safetensors"
    ).read_bytes()


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


REFUSED = [
    (
        "config.json",
        put(model_type="bart"),
        "model_type='bart' is not supported, only 'marian' is",
    ),
    (
        "config.json",
        put(share_encoder_decoder_embeddings=False),
        "share_encoder_decoder_embeddings=False is not supported",
    ),
    (
        "config.json",
        put(tie_word_embeddings=False),
        "tie_word_embeddings=False is not supported",
    ),
    (
        "config.json",
        put(normalize_before=True),
        "normalize_before=True is not supported",
    ),
    ("config.json", put(decoder_vocab_size=7), "decoder_vocab_size=7 is not supported"),
    (
        "config.json",
        put(activation_function="mish"),
        "activation_function='mish' is none of relu, gelu, swish, silu",
    ),
    (
        "config.json",
        put(d_model=33),
        "d_model=33 must be even and a multiple of encoder_attention_heads=4",
    ),
    ("config.json", put(d_model=36), "has shape"),
    (
        "config.json",
        put(encoder_layers=3),
        "lacks the weight model.encoder.layers.2.self_attn.q_proj.weight",
    ),
    ("config.json", put(decoder_layers=1), "which this model has not"),
    ("config.json", put(encoder_layers=10**12), "must be at least 1 and below 1001"),
    (
        "config.json",
        put(decoder_ffn_dim=10**18),
        "a model of these sizes cannot be built",
    ),
    (
        "config.json",
        put(vocab_size=10**15, decoder_vocab_size=10**15),
        "tokens; this model needs the ids from 0 to",
    ),
    ("config.json", put(d_model="wide"), "d_model='wide' must be a whole number"),
    ("config.json", put(scale_embedding=1), "scale_embedding=1 must be true or false"),
    (
        "config.json",
        lambda v: v.pop("encoder_layers") and None,
        r"config.json lacks encoder_layers$",
    ),
    (
        "config.json",
        lambda v: {"model_type": "marian"},
        r"config.json lacks vocab_size, d_model, .*, scale_embedding$",
    ),
    ("config.json", lambda v: [v], "holds no JSON object"),
    (
        "generation_config.json",
        put(no_repeat_ngram_size=3),
        "no_repeat_ngram_size=3 is not supported, only 0 is",
    ),
    (
        "generation_config.json",
        put(forced_bos_token_id=5),
        "forced_bos_token_id=5 is not supported",
    ),
    (
        "generation_config.json",
        put(bad_words_ids=[[1, 2]]),
        r"bad_words_ids=\[\[1, 2\]\] is not supported",
    ),
    (
        "generation_config.json",
        put(forced_eos_token_id=4),
        "forced_eos_token_id=4 is not supported, only 0 is",
    ),
    (
        "generation_config.json",
        put(eos_token_id=[0, 1]),
        r"eos_token_id=\[0, 1\] must be a whole number",
    ),
    (
        "generation_config.json",
        put(decoder_start_token_id=-1),
        "decoder_start_token_id=-1 must be at least 0",
    ),
    (
        "generation_config.json",
        put(length_penalty=-1.0),
        "length_penalty=-1.0 must be at least 0",
    ),
    ("generation_config.json", put(num_beams=0), "num_beams=0 must be at least 1"),
    ("vocab.json", lambda v: {"</s>": 0}, "vocab.json has 1 tokens"),
    ("vocab.json", lambda v: v | {"</s>": 1}, "each once"),
    ("vocab.json", lambda v: v | {"</s>": [0]}, "each once"),
    ("vocab.json", lambda v: v | {"</s>": 1, "<unk>": 0}, "must name <unk>"),
    ("vocab.json", lambda v: [v], "holds no JSON object"),
    ("source.spm", lambda b: b"", "source.spm is not a SentencePiece model"),
    (
        "target.spm",
        lambda b: b[: len(b) // 2],
        "target.spm is not a SentencePiece model",
    ),
    (
        "model.safetensors",
        lambda w: w.pop("final_logits_bias"),
        "lacks the weight final_logits_bias",
    ),
    (
        "model.safetensors",
        put(more=torch.zeros(1)),
        "has a weight more, which this model has not",
    ),
    (
        "model.safetensors",
        put(final_logits_bias=torch.zeros(1, 9)),
        r"final_logits_bias has shape \(1, 9\)",
    ),
    (
        "model.safetensors",
        lambda w: w["final_logits_bias"].fill_(torch.nan),
        "final_logits_bias holds numbers that are not finite",
    ),
    (
        "model.safetensors",
        lambda w: w.update({"lm_head.weight": w[_COPIES[0]] + 1}),
        "differ; here they are one matrix",
    ),
    (
        "model.safetensors",
        lambda w: w.pop(_COPIES[0]),
        f"lacks the weight {_COPIES[0]}",
    ),
    (
        "model.safetensors",
        lambda w: w.update({_TABLES[1]: positional_encoding(128, 32)}),
        "holds no sines and cosines in halves",
    ),
    (
        "model.safetensors",
        lambda w: w.update({_TABLES[0]: torch.tensor(1.0)}),
        "holds no sines and cosines in halves",
    ),
    (
        "model.safetensors",
        lambda w: w.update({_TABLES[0]: torch.zeros(0, 32)}),
        "holds no sines and cosines in halves",
    ),
    (
        "model.safetensors",
        lambda w: w.update(
            {_TABLES[0]: torch.zeros(0, 32), _TABLES[1]: torch.zeros(3)}
        ),
        "holds no sines and cosines in halves",
    ),
]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    REFUSED,
    ids=[f"{name}: {message}" for name, _, message in REFUSED],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    folder, tmp_path, name, change, message
):
    with pytest.raises(ValueError, match=message):
        import_marian(
            changed(folder, tmp_path, name, change), tmp_path / "runs" / "new"
        )
    assert [file.name for file in tmp_path.iterdir()] == ["changed"]


@pytest.mark.parametrize(
    "key", [key for key, value in _ONLY.items() if key != "model_type"]
)
def test_all_that_would_change_the_result_is_refused(folder, tmp_path, key):
    other = changed(folder, tmp_path, "config.json", put(**{key: not _ONLY[key]}))
    with pytest.raises(ValueError, match=f"{key}=.* is not supported"):
        _read_marian(other)


@pytest.mark.parametrize(
    "name",
    ["config.json", "vocab.json", "source.spm", "target.spm", "model.safetensors"],
)
def test_files_that_are_missing_or_cut_short(folder, tmp_path, name):
    copied = shutil.copytree(folder, tmp_path / "copy")
    for data in (b"", (folder / name).read_bytes()[:100], b"\xff\xfe[" * 50):
        (copied / name).write_bytes(data)
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            import_marian(copied, tmp_path / "run")
    (copied / name).unlink()
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        import_marian(copied, tmp_path / "run")
    assert [file.name for file in tmp_path.iterdir()] == ["copy"]


def test_a_pickle_is_not_opened(folder, tmp_path, monkeypatch):
    "And the way that the message names leads to a run, with the same weights."
    old, unpickled = shutil.copytree(folder, tmp_path / "old"), []
    theirs = transformers.MarianMTModel.from_pretrained(folder)
    torch.save(theirs.state_dict(), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    with monkeypatch.context() as patched:
        for module, name in (
            (torch, "load"),
            (pickle, "load"),
            (pickle, "loads"),
            (pickle, "Unpickler"),
        ):
            patched.setattr(module, name, unpickled.append)
        with pytest.raises(
            ValueError, match="is a pickle, which may run any code and is not read"
        ) as refused:
            import_marian(old, tmp_path / "run")
        import_marian(folder, tmp_path / "other")
        load(tmp_path / "other")
    assert unpickled == []
    exec(str(refused.value).split("convert it: ")[1], {"transformers": transformers})
    import_marian(old, tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for name, weight in load_file(tmp_path / "other" / "model.safetensors").items():
        assert torch.equal(weights[name], weight)


@pytest.mark.parametrize(
    "name", ["source.spm", "config.json", "vocab.json", "model.safetensors"]
)
def test_a_pipe_in_the_place_of_a_file(folder, name, tmp_path):
    "It would be read for ever, or waited for."
    shutil.copytree(folder, tmp_path / "piped")
    (tmp_path / "piped" / name).unlink()
    os.mkfifo(tmp_path / "piped" / name)
    with pytest.raises(ValueError, match=name):
        import_marian(tmp_path / "piped", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_place_that_is_taken(folder, run, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (run, tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match="is there already: choose a new place"):
            import_marian(folder, place)
    with pytest.raises(ValueError, match="file is a file, so .*run cannot be a folder"):
        import_marian(folder, tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "stop", [KeyboardInterrupt, OSError(28, "No space left on device")]
)
def test_nothing_half_is_left(folder, tmp_path, monkeypatch, stop):
    def fail(*args):
        raise stop

    monkeypatch.setattr(
        "annotated_transformer.translating.marian_import.save_tensors", fail
    )
    with pytest.raises(stop if isinstance(stop, type) else type(stop)):
        import_marian(folder, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_damaged_runs(run, tmp_path):
    for name, message in [
        ("config.json", "cannot be read"),
        ("vocab.json", "cannot be read"),
        ("source.spm", "not a SentencePiece model"),
        ("model.safetensors", "not a readable safetensors file"),
    ]:
        copied = shutil.copytree(run, tmp_path / name)
        (copied / name).write_bytes((run / name).read_bytes()[:50])
        with pytest.raises(ValueError, match=message):
            load(copied)
    swapped = shutil.copytree(run, tmp_path / "swapped")
    shutil.copy(run / "source.spm", swapped / "target.spm")
    with pytest.raises(ValueError, match="is not the file that was imported"):
        load(swapped)
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here"):
        load(run, device="abacus")


@pytest.mark.parametrize(
    "values",
    [
        {"marian": None},
        {"marian": {}},
        {"marian": {"d_model": 8}},
        {"sha256": []},
        {"sha256": None},
    ],
)
def test_damaged_settings(run, tmp_path, values):
    copied = shutil.copytree(run, tmp_path / "run")
    (copied / "config.json").write_text(
        json.dumps(json.loads((run / "config.json").read_text()) | values)
    )
    with pytest.raises(ValueError):
        load(copied)


def test_sizes_of_a_run_are_those_of_its_weights(run, tmp_path):
    "Found before a model of the wrong size is built."
    copied = shutil.copytree(run, tmp_path / "run")
    values = json.loads((run / "config.json").read_text())
    values["marian"]["encoder_ffn_dim"] = 10**12
    (copied / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="this model needs"):
        load(copied)


# both kinds of run


def test_both_kinds(run, tmp_path):
    vocab, mine = learn_bpe([s.en for s in builtin(50)], 320), tmp_path / "mine"
    recipe = Recipe(
        ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2),
        TrainConfig(n_pieces=320),
    )
    create_run(mine, recipe, {})
    vocab.save(mine / "vocab.model")
    write_config(mine, recipe, {})
    save_weights(
        build_transformer(recipe.model, len(vocab), vocab.pad_id),
        mine / "model.safetensors",
    )
    assert (run_kind(run), run_kind(mine)) == ("marian", None)
    loaded = load_run(mine)
    by_hand = Translator(loaded.model, loaded.vocab, max_tokens=recipe.train.max_len)
    assert load(mine).translate(["a dog"]) == by_hand.translate(["a dog"])
    assert isinstance(load(run), _MarianTranslator)
    assert not isinstance(load(mine), _MarianTranslator)
    assert loaded.recipe == recipe
    with pytest.raises(ValueError, match="was imported from Marian: it translates"):
        read_config(run)
    with pytest.raises(ValueError, match="is not a run folder"):
        load(tmp_path)
