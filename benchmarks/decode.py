#!/usr/bin/env python
"""Decoding speed beside the engines that people deploy: the same weights, the same sentences, one interleaved run.

    make bench-decode RUN=runs/small                      or, with its options:
    python benchmarks/decode.py runs/small --data-dir DATA --rounds 5 --out decode.json
    python benchmarks/decode.py runs/small --profile "beam 4, batches of 64"    where our time goes

The run is one of Multi30k:  annotated-transformer train --data multi30k --config multi30k-small --out runs/small
Sentences are those of test_2016, in batches of similar length, or one by one (fewer). Contenders: ours; Hugging Face's `generate` with
either of its attentions; CTranslate2 in float32 and int8 (`pip install transformers ctranslate2`). All do the same work: no length penalty,
an end counts if it is among the best of its step, at most 50 tokens more than the source has, equal threads; ids, tensors or pieces are
prepared beforehand. A round times every contender once in each setting, one after the other; ratios are taken within a round, and
medians are printed, with the share of sentences that are ours word by word, and every contender's BLEU. Each contender lives in a process of
its own and sleeps while another is timed: in one process PyTorch and CTranslate2 would share one OpenMP, which stops its threads from
waiting awake once there are more of them than cores, and small products then take twice the time. The processor time of a contender is
printed beside ours: below 1, it needs less than ours. `--kernels avx2` measures as on a processor that has no more instructions than these.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch
from sacrebleu.metrics import BLEU
from torch import Tensor

from annotated_transformer.data.batch import pad_ids
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    eos_among_best,
)
from annotated_transformer.engines.packed import ready_to_translate
from annotated_transformer.export.ct2 import export_ct2, position_table
from annotated_transformer.io.text import read_lines
from annotated_transformer.runs.folder import Run, load_run
from annotated_transformer.translating.translate import Translator

SETTINGS = {
    "greedy, batches of 64": (1, 64),
    "beam 4, batches of 64": (4, 64),
    "greedy, one by one": (1, 1),
    "beam 4, one by one": (4, 1),
}
TRAIN = "annotated-transformer train --data multi30k --config multi30k-small --out"
KERNELS = {  # variables that hide instructions of this processor from the libraries
    "native": {},
    "avx512": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",
        "ATEN_CPU_CAPABILITY": "avx512",
        "CT2_FORCE_CPU_ISA": "AVX512",
    },
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "CT2_FORCE_CPU_ISA": "AVX2",
    },
}
MORE = 50  # tokens that a translation may have beyond its source's (§6.1)


# ---- the contenders: `prepare` is not timed, `decode` is, `ids` reads what came out


class Ours:
    precision = "fp32"

    def __init__(self, run: Run, args: argparse.Namespace):
        model = run.model.to(args.device)  # changed in place
        self.model = ready_to_translate(model, self.precision)
        beam = partial(
            batched_beam_search,
            beam_size=4,
            penalty=lambda n: n**0,
            may_end=eos_among_best,
        )
        self.eos_id = run.vocab.eos_id
        self.translators = {
            size: Translator(self.model, run.vocab, search=search)
            for size, search in ((1, batched_greedy_search), (4, beam))
        }

    def prepare(self, rows: list[list[int]]) -> list[list[int]]:
        return [row + [self.eos_id] for row in rows]

    def decode(self, rows: list[list[int]], beam: int) -> list:
        return self.translators[beam].search_ids(rows)

    def ids(self, found: list) -> list[list[int]]:
        return [best.ids for best, *_ in found]


class HuggingFace:
    "Its Marian, which is the paper's model but for the biases of its attention: those are zero here, and the positions are ours."

    attention = "sdpa"  # its default
    precision = "fp32"

    def __init__(self, run: Run, args: argparse.Namespace):
        from transformers import MarianConfig, MarianMTModel

        m, v = run.recipe.model, run.vocab
        if m.norm != "post" or {m.d_k, m.d_v} != {None}:
            raise ValueError("it has no pre-norm and no heads of other widths")
        positions = position_table(run.model, m)
        self.vocab, self.model = (
            v,
            MarianMTModel(
                MarianConfig(
                    vocab_size=len(v),
                    d_model=m.d_model,
                    encoder_layers=m.n_layers,
                    decoder_layers=m.n_layers,
                    encoder_attention_heads=m.n_heads,
                    decoder_attention_heads=m.n_heads,
                    encoder_ffn_dim=m.d_ff,
                    decoder_ffn_dim=m.d_ff,
                    activation_function="relu",
                    scale_embedding=True,
                    max_position_embeddings=len(positions),
                    pad_token_id=v.pad_id,
                    eos_token_id=v.eos_id,
                    decoder_start_token_id=v.bos_id,
                    forced_eos_token_id=None,
                    attn_implementation=self.attention,
                )
            ).eval(),
        )
        weights = {
            name: torch.zeros_like(weight)
            for name, weight in self.model.state_dict().items()
        }
        weights |= hugging_face_names(run.model.state_dict(), m.n_layers, positions)
        self.model.load_state_dict(weights)
        self.model.to(args.device)
        if self.precision == "bf16":
            self.model.bfloat16()

    def prepare(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        src = pad_ids([row + [self.vocab.eos_id] for row in rows], self.vocab.pad_id)
        src = src.to(self.model.device)
        return src, (src != self.vocab.pad_id).long()

    def decode(self, batch: tuple[Tensor, Tensor], beam: int) -> Tensor:
        (src, mask), stop = (
            batch,
            {"length_penalty": 0.0, "early_stopping": "never"} if beam > 1 else {},
        )
        with torch.inference_mode():
            return self.model.generate(
                input_ids=src,
                attention_mask=mask,
                num_beams=beam,
                do_sample=False,
                use_cache=True,
                max_new_tokens=src.size(1) - 1 + MORE,
                **stop,
            )

    def ids(self, found: Tensor) -> list[list[int]]:
        rows = [row[1:] for row in found.tolist()]  # behind the start symbol
        return [
            row[: row.index(self.vocab.eos_id)] if self.vocab.eos_id in row else row
            for row in rows
        ]


class HuggingFaceEager(HuggingFace):
    attention = "eager"


class CTranslate2:
    quantization = "float32"

    def __init__(self, run: Run, args: argparse.Namespace):
        import ctranslate2

        self.vocab = run.vocab
        self.folder = tempfile.TemporaryDirectory()
        folder = export_ct2(
            args.run, Path(self.folder.name) / "model", self.quantization
        )
        self.engine = ctranslate2.Translator(
            str(folder), args.device, inter_threads=1, intra_threads=args.threads
        )

    def prepare(self, rows: list[list[int]]) -> list[list[str]]:
        return [self.vocab.words(row) for row in rows]

    def decode(self, batch: list[list[str]], beam: int) -> list:
        return self.engine.translate_batch(
            batch,
            beam_size=beam,
            length_penalty=0,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max(map(len, batch)) + MORE,
        )

    def ids(self, found: list) -> list[list[int]]:
        return [
            list(map(self.vocab.pieces.piece_to_id, result.hypotheses[0]))
            for result in found
        ]


class CTranslate2Int8(CTranslate2):
    quantization = "int8"


class OursBf16(Ours):
    precision = "bf16"


class OursInt8(Ours):
    precision = "int8"


OURS = {"ours": Ours, "ours, bf16": OursBf16, "ours, int8": OursInt8}
HUGGING_FACE = {"Hugging Face": HuggingFace, "the same, eager": HuggingFaceEager}
CONTENDERS = (
    OURS
    | HUGGING_FACE
    | {"CTranslate2": CTranslate2, "CTranslate2, int8": CTranslate2Int8}
)


def hugging_face_names(
    ours: dict[str, Tensor], n_layers: int, positions: Tensor
) -> dict[str, Tensor]:
    "Our weights under Marian's names there."
    attention = {"q_proj": "w_q", "k_proj": "w_k", "v_proj": "w_v", "out_proj": "w_o"}
    encoder = {
        f"self_attn.{theirs}.weight": f"self_attn.{mine}.weight"
        for theirs, mine in attention.items()
    }
    decoder = encoder | {
        f"encoder_attn.{theirs}.weight": f"cross_attn.{mine}.weight"
        for theirs, mine in attention.items()
    }
    for kind in ("weight", "bias"):
        both = {f"fc{i}.{kind}": f"feed_forward.w_{i}.{kind}" for i in (1, 2)} | {
            f"self_attn_layer_norm.{kind}": f"residuals.0.norm.{kind}"
        }
        encoder |= both | {f"final_layer_norm.{kind}": f"residuals.1.norm.{kind}"}
        decoder |= both | {
            f"encoder_attn_layer_norm.{kind}": f"residuals.1.norm.{kind}",
            f"final_layer_norm.{kind}": f"residuals.2.norm.{kind}",
        }
    weights = {
        f"model.{side}.layers.{i}.{theirs}": ours[f"{side}.layers.{i}.{mine}"]
        for side, layer in (("encoder", encoder), ("decoder", decoder))
        for i in range(n_layers)
        for theirs, mine in layer.items()
    }
    words = dict.fromkeys(
        (
            "model.shared.weight",
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
        ),
        ours["embedding.weight"],
    )
    return (
        weights
        | words
        | dict.fromkeys(
            (
                "model.encoder.embed_positions.weight",
                "model.decoder.embed_positions.weight",
            ),
            positions,
        )
    )


class Took(NamedTuple):
    seconds: float  # by the clock
    processor: float  # seconds of all threads of the process


def serve(pipe: Connection, name: str, args: argparse.Namespace) -> None:
    "One contender's process: it is sent a list of batches and a beam, and answers with seconds and ids."
    torch.set_num_threads(args.threads)
    try:
        contender = CONTENDERS[name](load_run(args.run), args)
    except (ImportError, ValueError) as e:
        return pipe.send(str(e))
    pipe.send(None)
    while order := pipe.recv():
        batches, beam = order
        prepared = [contender.prepare(rows) for rows in batches]
        began, processor = time.perf_counter(), time.process_time()
        found = [contender.decode(batch, beam) for batch in prepared]
        if args.device != "cpu":
            torch.cuda.synchronize()
        took = Took(time.perf_counter() - began, time.process_time() - processor)
        pipe.send((took, [contender.ids(one) for one in found]))


class Apart:
    "A contender in a process of its own."

    def __init__(self, name: str, args: argparse.Namespace):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(
            target=serve, args=(theirs, name, args), daemon=True
        )
        self.process.start()

    def decode(
        self, batches: list[list[list[int]]], beam: int
    ) -> tuple[Took, list[list[list[int]]]]:
        "The time for all batches, and what it says to each."
        self.pipe.send((batches, beam))
        return self.pipe.recv()


def contenders(args: argparse.Namespace) -> dict[str, Apart]:
    "Ours first, then each of the others that is installed and can hold the model."
    made = {
        name: Apart(name, args)
        for name in CONTENDERS
        if name in ("ours", *args.contenders)
    }
    for name in list(made):
        if why := made[name].pipe.recv():
            print(f"{name} is left out: {why}")
            del made[name]
    return made


# ---- sentences


def read_text(args: argparse.Namespace) -> tuple[list[str], list[str] | None]:
    "Sources, and references if there are any."
    if args.src:
        sources, references = (
            read_lines(args.src),
            read_lines(args.ref) if args.ref else None,
        )
    else:
        sources, references = map(
            list, zip(*load_corpus("multi30k", args.data_dir).test)
        )
    return sources[: args.sentences], references and references[: args.sentences]


def batches_of(
    rows: list[list[int]], size: int, args: argparse.Namespace
) -> list[list[int]]:
    "Which sentences go together: neighbours by length; one by one only some, spread over all."
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    if size == 1:
        return [[i] for i in order[:: max(1, len(rows) // args.one_by_one)]][
            : args.one_by_one
        ]
    return [order[i : i + size] for i in range(0, len(order), size)]


# ---- timing


def seconds(contender, prepared: list, beam: int) -> float:
    began = time.perf_counter()
    for batch in prepared:
        contender.decode(batch, beam)
    return time.perf_counter() - began


def outputs(
    made: dict[str, Apart],
    run: Run,
    rows: list[list[int]],
    references: list[str] | None,
    beam: int,
    args: argparse.Namespace,
) -> dict:
    "What all contenders say: the share of sentences that ours says too, and BLEU. It warms them up as well."
    said, result, groups = {}, {}, batches_of(rows, 64, args)
    for name, contender in made.items():
        _, found = contender.decode([[rows[i] for i in some] for some in groups], beam)
        said[name] = [[]] * len(rows)
        for i, ids in zip(sum(groups, []), sum(found, []), strict=True):
            said[name][i] = ids
        same = sum(a == b for a, b in zip(said[name], said["ours"])) / len(rows)
        score = (
            BLEU()
            .corpus_score(list(map(run.vocab.decode, said[name])), [references])
            .score
            if references
            else None
        )
        result[name] = {
            "same_as_ours": round(same, 4),
            "bleu": score if score is None else round(score, 2),
            "words": sum(map(len, said[name])),
        }
    return result


def compare(
    run: Run,
    rows: list[list[int]],
    references: list[str] | None,
    args: argparse.Namespace,
) -> dict:
    "Rounds of all contenders in turn, in every setting; medians of what each round gave."
    made = contenders(args)
    said = {
        beam: outputs(made, run, rows, references, beam, args)
        for beam in {beam: 0 for beam, _ in map(SETTINGS.get, args.settings)}
    }
    names, rounds = list(made), {setting: [] for setting in args.settings}
    groups = {
        setting: batches_of(rows, SETTINGS[setting][1], args)
        for setting in args.settings
    }
    for i in range(args.rounds):
        order = names[i % len(names) :] + names[: i % len(names)]
        for setting in args.settings:
            beam, batches = (
                SETTINGS[setting][0],
                [[rows[k] for k in some] for some in groups[setting]],
            )
            if i == 0 and SETTINGS[setting][1] == 1:
                for name in names:
                    made[name].decode(batches[:5], beam)  # warm
            rounds[setting].append(
                {name: made[name].decode(batches, beam)[0] for name in order}
            )
        print(f"round {i + 1} of {args.rounds} done", flush=True)
    for one in made.values():
        one.pipe.send(None)  # that is all
    return {
        setting: summary(
            rounds[setting],
            sum(map(len, groups[setting])),
            said[SETTINGS[setting][0]],
            setting,
        )
        for setting in args.settings
    }


def summary(rounds: list[dict[str, Took]], n: int, said: dict, setting: str) -> dict:
    "Medians over rounds; printed, and returned."
    middle = lambda values: round(statistics.median(values), 3)
    result = {
        name: {
            "sentences_per_s": middle(n / r[name].seconds for r in rounds),
            "ours_is_faster_by": middle(
                r[name].seconds / r["ours"].seconds for r in rounds
            ),
            "processor_time_by_ours": middle(
                r[name].processor / r["ours"].processor for r in rounds
            ),
            **said[name],
        }
        for name in rounds[0]
    }
    for name in result:
        result[name]["seconds"] = [round(r[name].seconds, 3) for r in rounds]
    print(
        f"\n{setting}, {n} sentences\n{'':20}{'sentences/s':>12}{'ours is faster by':>19}"
        f"{'processor time':>16}{'same as ours':>14}{'BLEU':>8}"
    )
    for name, r in result.items():
        score = "" if r["bleu"] is None else r["bleu"]
        print(
            f"{name:20}{r['sentences_per_s']:>12.1f}{r['ours_is_faster_by']:>19.2f}"
            f"{r['processor_time_by_ours']:>16.2f}{r['same_as_ours']:>14.1%}{score:>8}"
        )
    if peers := HUGGING_FACE.keys() & rounds[0].keys():
        faster = result["ours over the faster Hugging Face"] = middle(
            min(r[p].seconds for p in peers) / r["ours"].seconds for r in rounds
        )
        print(f"ours over the faster Hugging Face of each round: {faster:.2f}")
    return result


# ---- where our time goes


def profile(
    run: Run, rows: list[list[int]], setting: str, args: argparse.Namespace
) -> None:
    "The operators of our search by their own time, and what is left over: Python, and PyTorch's way from it to the operators."
    beam, size = SETTINGS[setting]
    ours, some = OURS["ours"](run, args), batches_of(rows, size, args)
    some = some[:: max(1, len(some) // (4 if size > 1 else 20))]
    prepared, n_steps = [ours.prepare([rows[i] for i in group]) for group in some], 0
    translator = ours.translators[beam]
    make_decoder = translator.decoder

    def counted(model):
        decoder = make_decoder(model)
        step = decoder.step

        def counting(last_ids: Tensor, state):
            nonlocal n_steps
            n_steps += 1
            return step(last_ids, state)

        decoder.step = counting
        return decoder

    translator.decoder = counted
    seconds(ours, prepared, beam)  # warm
    n_steps = 0
    plain, n_plain = seconds(ours, prepared, beam), n_steps
    with torch.profiler.profile() as watched:
        profiled = seconds(ours, prepared, beam)
    events = sorted(watched.key_averages(), key=lambda e: -e.self_cpu_time_total)
    inside, n_ops = (
        sum(e.self_cpu_time_total for e in events) / 1e6,
        sum(e.count for e in events),
    )
    print(
        f"{setting}: {sum(map(len, some))} sentences, {n_plain} steps, "
        f"{plain / n_plain * 1e3:.2f} ms a step ({profiled / n_plain * 1e3:.2f} while watched)"
    )
    for e in events[:20]:
        print(
            f"{e.key[:50]:52}{e.self_cpu_time_total / 1e6 / profiled:7.1%}{e.self_cpu_time_total / n_plain:9.0f} µs{e.count / n_plain:8.1f} a step"
        )
    print(
        f"{'outside any operator: Python':52}{1 - inside / profiled:7.1%}{(profiled - inside) / n_plain * 1e6:9.0f} µs"
    )
    print(f"{n_ops / n_plain:.0f} operators a step, those inside of others counted too")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "run",
        type=Path,
        nargs="?",
        default=Path("runs/small"),
        help="a run folder trained on Multi30k",
    )
    parser.add_argument(
        "--data-dir",
        default=os.environ.get("ANNOTATED_TRANSFORMER_DATA"),
        help="holds multi30k/; without it the text is downloaded",
    )
    parser.add_argument(
        "--src", type=Path, help="other sentences to translate, a line each"
    )
    parser.add_argument("--ref", type=Path, help="their references")
    parser.add_argument("--sentences", type=int, help="only the first so many")
    parser.add_argument(
        "--one-by-one", type=int, default=100, help="sentences translated one by one"
    )
    parser.add_argument(
        "--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS)
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=list(CONTENDERS),
        choices=list(CONTENDERS),
        help="ours is always there",
    )
    parser.add_argument(
        "--kernels",
        choices=list(KERNELS),
        default="native",
        help="as a processor with no more than these instructions",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--profile", metavar="SETTING", choices=list(SETTINGS))
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ.update(KERNELS[args.kernels])  # for the contenders' processes
    try:
        run = load_run(args.run)
    except ValueError as e:
        raise SystemExit(f"{e}; to make one: {TRAIN} {args.run}") from None
    sources, references = read_text(args)
    rows = run.vocab.encode_many(sources)
    if args.profile:
        return profile(run, rows, args.profile, args)
    result = {
        "threads": args.threads,
        "rounds": args.rounds,
        "kernels": args.kernels,
        **compare(run, rows, references, args),
    }
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
