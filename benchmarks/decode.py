#!/usr/bin/env python
"""Decoding speed beside the engines that people deploy: the same weights, the same sentences, one interleaved run.

    make bench-decode RUN=runs/small                      or, with its options:
    python benchmarks/decode.py runs/small --data-dir DATA --rounds 5 --out decode.json

The run is one of Multi30k:  annotated-transformer train --data multi30k --config multi30k-small --out runs/small
Sentences are those of test_2016, in batches of similar length, or one by one (fewer). Contenders: ours; Hugging Face's `generate` with
either of its attentions; CTranslate2 in float32 and int8 (`pip install transformers ctranslate2`). All do the same work: no length penalty,
an end counts if it is among the best of its step, at most 50 tokens more than the source has, equal threads; ids, tensors or pieces are
prepared beforehand. A round times every contender once in each setting, one after the other; ratios are taken within a round, and
medians are printed, with the share of sentences that are ours word by word, and every contender's BLEU. Each contender lives in a process of
its own and sleeps while another is timed: in one process PyTorch and CTranslate2 would share one OpenMP, which stops its threads from
waiting awake once there are more of them than cores, and small products then take twice the time. The processor time of a contender is
printed beside ours: below 1, it needs less than ours.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch
from measuring import in_turn, middle, options, write
from torch import Tensor
from train import marian

from annotated_transformer.data.batch import pad_ids
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
)
from annotated_transformer.engines.packed import prepare_for_inference
from annotated_transformer.export.ct2 import export_ct2, position_table
from annotated_transformer.export.marian import marian_names
from annotated_transformer.runs.folder import Run, load_run
from annotated_transformer.translating.evaluate import bleu
from annotated_transformer.translating.translate import Translator

SETTINGS = {
    "greedy, batches of 64": (1, 64),
    "beam 4, batches of 64": (4, 64),
    "greedy, one by one": (1, 1),
    "beam 4, one by one": (4, 1),
}
TRAIN = "annotated-transformer train --data multi30k --config multi30k-small --out"
MORE = 50  # tokens that a translation may have beyond its source's (§6.1)


# ---- the contenders: `prepare` is not timed, `decode` is, `ids` reads what came out


class Ours:
    precision = "fp32"

    def __init__(self, run: Run, args: argparse.Namespace):
        model = run.model.to(args.device)  # changed in place
        self.model = prepare_for_inference(model, self.precision)
        beam = partial(batched_beam_search, beam_size=4, penalty=lambda n: n**0)
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
        m, v = run.recipe.model, run.vocab
        if m.norm != "post" or {m.d_k, m.d_v} != {None}:
            raise ValueError("it has no pre-norm and no heads of other widths")
        positions = position_table(run.model, m)
        self.vocab = v
        self.model = marian(
            m,
            len(v),
            max_position_embeddings=len(positions),
            pad_token_id=v.pad_id,
            eos_token_id=v.eos_id,
            decoder_start_token_id=v.bos_id,
            forced_eos_token_id=None,
            attn_implementation=self.attention,
        ).eval()
        ours, names = run.model.state_dict(), marian_names(self.model.config)
        weights = {}
        for name, weight in self.model.state_dict().items():
            if name.endswith("embed_positions.weight"):
                weights[name] = positions
            elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
                weights[name] = ours["embedding.weight"]
            else:
                weights[name] = ours.get(names.get(name), torch.zeros_like(weight))
        self.model.load_state_dict(weights)
        self.model.to(args.device)
        if self.precision == "bf16":
            self.model.bfloat16()

    def prepare(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        src = pad_ids([row + [self.vocab.eos_id] for row in rows], self.vocab.pad_id)
        src = src.to(self.model.device)
        return src, (src != self.vocab.pad_id).long()

    def decode(self, batch: tuple[Tensor, Tensor], beam: int) -> Tensor:
        src, mask = batch
        stop = {"length_penalty": 0.0, "early_stopping": "never"} if beam > 1 else {}
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
        rows = [row[1:] for row in found.tolist()]  # after BOS
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
        return [self.vocab.tokens(row) for row in rows]

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
        to_id = self.vocab.pieces.piece_to_id
        return [list(map(to_id, result.hypotheses[0])) for result in found]


class CTranslate2Int8(CTranslate2):
    quantization = "int8"


class OursBf16(Ours):
    precision = "bf16"


class OursInt8(Ours):
    precision = "int8"


OURS = {"ours": Ours, "ours, bf16": OursBf16, "ours, int8": OursInt8}
HUGGING_FACE = {"Hugging Face": HuggingFace, "the same, eager": HuggingFaceEager}
CTRANSLATE2 = {"CTranslate2": CTranslate2, "CTranslate2, int8": CTranslate2Int8}
CONTENDERS = OURS | HUGGING_FACE | CTRANSLATE2


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
        spawn.Process(target=serve, args=(theirs, name, args), daemon=True).start()

    def decode(self, batches: list[list[list[int]]], beam: int) -> tuple[Took, list]:
        "The time for all batches, and the ids of each."
        self.pipe.send((batches, beam))
        return self.pipe.recv()


def contenders(args: argparse.Namespace) -> dict[str, Apart]:
    "Ours first, then each of the others that is installed and can hold the model."
    names = [name for name in CONTENDERS if name in ("ours", *args.contenders)]
    made = {name: Apart(name, args) for name in names}
    for name in names:
        if why := made[name].pipe.recv():
            print(f"{name} is left out: {why}")
            del made[name]
    return made


# ---- sentences


def batches_of(rows: list[list[int]], size: int, n_one_by_one: int) -> list[list[int]]:
    "Which sentences go together: neighbours by length; one by one only some, spread over all."
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    if size == 1:
        some = order[:: max(1, len(rows) // n_one_by_one)]
        return [[i] for i in some[:n_one_by_one]]
    return [order[i : i + size] for i in range(0, len(order), size)]


# ---- timing


def outputs(
    made: dict[str, Apart],
    run: Run,
    rows: list[list[int]],
    references: list[str],
    beam: int,
) -> dict:
    "The share of translations that are ours, and BLEU. It warms the contenders up as well."
    groups = batches_of(rows, 64, 1)
    where, batches = sum(groups, []), [[rows[i] for i in some] for some in groups]
    said, result = {}, {}
    for name, contender in made.items():
        by_row = dict(
            zip(where, sum(contender.decode(batches, beam)[1], []), strict=True)
        )
        said[name] = [by_row[i] for i in range(len(rows))]
        same = sum(map(list.__eq__, said[name], said["ours"])) / len(rows)
        lines = list(map(run.vocab.decode, said[name]))
        n_tokens = sum(map(len, said[name]))
        result[name] = {
            "same_as_ours": round(same, 4),
            "bleu": round(bleu(lines, references).value, 2),
            "tokens": n_tokens,
        }
    return result


def compare(
    run: Run,
    rows: list[list[int]],
    references: list[str],
    args: argparse.Namespace,
) -> dict:
    "Rounds of all contenders in turn, in every setting; medians of what each round gave."
    made = contenders(args)
    beams = {SETTINGS[setting][0] for setting in args.settings}
    said = {beam: outputs(made, run, rows, references, beam) for beam in beams}
    rounds: dict[str, list] = {setting: [] for setting in args.settings}
    batches = {
        setting: [
            [rows[i] for i in some]
            for some in batches_of(rows, SETTINGS[setting][1], args.one_by_one)
        ]
        for setting in args.settings
    }
    for turn in range(args.rounds):
        for setting, some in batches.items():
            beam, size = SETTINGS[setting]
            if turn == 0 and size == 1:
                for one in made.values():
                    one.decode(some[:5], beam)  # warm
            order = in_turn(made, turn)
            took = {name: made[name].decode(some, beam)[0] for name in order}
            rounds[setting].append(took)
        print(f"round {turn + 1} of {args.rounds} done", flush=True)
    for one in made.values():
        one.pipe.send(None)  # that is all
    return {
        setting: summary(setting, rounds[setting], len(sum(some, [])), said)
        for setting, some in batches.items()
    }


def summary(setting: str, rounds: list[dict[str, Took]], n: int, said: dict) -> dict:
    "Medians over rounds; printed, and returned."
    result = {}
    print(
        f"\n{setting}, {n} sentences\n{'':20}{'sentences/s':>12}{'ours is faster by':>19}"
        f"{'processor time':>16}{'same as ours':>14}{'BLEU':>8}"
    )
    for name in rounds[0]:
        pairs = [(r[name], r["ours"]) for r in rounds]
        one = result[name] = {
            "sentences_per_s": middle(n / r.seconds for r, _ in pairs),
            "ours_is_faster_by": middle(r.seconds / o.seconds for r, o in pairs),
            "processor_time_by_ours": middle(
                r.processor / o.processor for r, o in pairs
            ),
            **said[SETTINGS[setting][0]][name],
            "seconds": [round(r.seconds, 3) for r, _ in pairs],
        }
        print(
            f"{name:20}{one['sentences_per_s']:>12.1f}{one['ours_is_faster_by']:>19.2f}"
            f"{one['processor_time_by_ours']:>16.2f}{one['same_as_ours']:>14.1%}"
            f"{one['bleu']:>8}"
        )
    if peers := HUGGING_FACE.keys() & rounds[0].keys():
        faster = result["ours over the faster Hugging Face"] = middle(
            min(r[p].seconds for p in peers) / r["ours"].seconds for r in rounds
        )
        print(f"ours over the faster Hugging Face of each round: {faster:.2f}")
    return result


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("run", type=Path, nargs="?", default=Path("runs/small"), help="of Multi30k")
    data_dir = os.environ.get("ANNOTATED_TRANSFORMER_DATA")
    add("--data-dir", default=data_dir, help="holds multi30k/; else it is downloaded")
    add("--sentences", type=int, help="only the first so many")
    add("--one-by-one", type=int, default=100, help="sentences translated one by one")
    add("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    names = list(CONTENDERS)
    add("--contenders", nargs="+", default=names, choices=names, help="besides ours")
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=2)
    add("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        run = load_run(args.run)
    except ValueError as e:
        raise SystemExit(f"{e}; to make one: {TRAIN} {args.run}") from None
    test = load_corpus("multi30k", args.data_dir).test[: args.sentences]
    sources, references = map(list, zip(*test))
    rows = run.vocab.encode_many(sources)
    about = {name: vars(args)[name] for name in ("threads", "rounds")}
    write(args.out, about | compare(run, rows, references, args))


if __name__ == "__main__":
    main()
