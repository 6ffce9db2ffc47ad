from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

from tide.demo import corpus, launch, page, schedule
from tide.demo.load import OtherWork
from tide.demo.progress import Progress
from tide.demo.results import bit_difference, collect
from tide.demo.table import notes, table

NEEDED = ("torch", "transformers", "tokenizers", "numpy")
IMPLEMENTATIONS = ("stock", "tide", "reference")
SIZES = ("demo", "small")  # of model.py, which needs PyTorch


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tide.demo",
        description="Trains a small Llama-style model with stock FSDP2 over gloo and with TIDE, with the same data and "
        "weights, and compares step time, communication, loss and memory.",
    )
    parser.add_argument(
        "--impl",
        action="append",
        choices=IMPLEMENTATIONS,
        help="run this one; may be repeated (default: stock and tide)",
    )
    parser.add_argument("--ranks", type=_whole, default=8, help="processes of one thread each (default: 8)")
    parser.add_argument(
        "--tokens",
        type=_whole,
        nargs="+",
        default=[64, 256, 1024],
        metavar="N",
        help="tokens a rank in a step (default: 64 256 1024)",
    )
    parser.add_argument("--steps", type=_whole, help="steps of the loss curve (default: 60; of --check-bits: 200)")
    parser.add_argument("--size", choices=SIZES, help="model (default: demo, 32 M parameters; small with --check-bits)")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="end the loss curve early after so long (default: 9)"
    )
    parser.add_argument(
        "--check-bits",
        action="store_true",
        help="train on TIDE and on stock FSDP2 that reduces in rank order, "
        "and fail unless losses and parameters agree in every bit",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="folder for report.json, report.html and the tokenised text (default: build/demo)",
    )
    parser.add_argument("--json", action="store_true", help="print report.json instead of the table")
    options = parser.parse_args()
    for n in options.tokens:
        if n > 256 and n % 256:
            parser.error(
                f"--tokens {n}: above 256 a step is made of sequences of 256 tokens, so name a multiple of 256"
            )
    return options


def run(job: dict, options: argparse.Namespace, progress: Progress) -> list[dict]:
    reports = []
    for report in launch.events(job, options.ranks, options.out):
        reports.append(report)
        progress.see(report)
    return reports


def describe(parameters: int, ranks: int, cores: int) -> str:
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    precision = "bf16 weights, fp32 sums"
    if not capability.startswith("AVX512"):
        precision += f", matrix products in fp32 in all runs (bf16 ones are slow on {capability})"
    return (
        f"Llama-style model, {parameters / 1e6:.1f} M parameters, {ranks} ranks on {cores} cores, "
        f"PyTorch {torch.__version__}: {precision}"
    )


def demo(options: argparse.Namespace) -> int:
    began = time.time()
    cores = len(os.sched_getaffinity(0))
    impls = list(dict.fromkeys(options.impl or ("stock", "tide")))
    tokens = sorted(set(options.tokens))
    if options.check_bits:
        rounds = schedule.check_bits(options.steps or 200)
    else:
        rounds = schedule.compare(impls, tokens, options.steps or 60)
    size = options.size or ("small" if options.check_bits else "demo")
    progress = Progress(schedule.steps_of(rounds))
    try:
        if not options.json:
            progress.say("preparing the text")
        job = {
            "size": size,
            "corpus": str(corpus.prepare(options.out, corpus.VOCABULARY[size])),
            "deadline": began + 60 * options.minutes,
            "timeout_s": 180,
            "rounds": rounds,
        }
        if not options.json:
            progress.say(f"starting {options.ranks} ranks")
        others = OtherWork()
        reports = run(job, options, progress)
        other_cores = others.cores()
    finally:
        progress.close()
    if options.check_bits:
        steps, difference = bit_difference(reports)
        if difference:
            print(f"tide.demo: not the same bits: {difference}", file=sys.stderr)
            return 1
        print(f"the same bits in every loss and parameter of {options.ranks} ranks over {steps} steps")
        return 0
    results = collect(reports, impls)
    title = describe(results.parameters, options.ranks, cores)
    found = {
        "version": 1,
        "title": title,
        "ranks": options.ranks,
        "cores": cores,
        "cores_of_others": other_cores,
    } | results.as_json()
    found["seconds"] = time.time() - began
    (options.out / "report.json").write_text(json.dumps(found, indent=1) + "\n")
    written = ["report.json"]
    said = notes(results, other_cores)
    if page.write(results, title, said, options.out / "report.html"):
        written.append("report.html")
    if options.json:
        print(json.dumps(found))
        return 0
    served = [results.tide_table, ""] if results.tide_table else []
    print("\n".join(["", title, "", *served, table(results), "", *said]))
    print(f"{' and '.join(written)} in {options.out}; {found['seconds']:.0f} s in all")
    return 0


def main() -> int:
    options = arguments()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"tide.demo: needs {', '.join(missing)}, which this Python does not have: make setup, or pip install "
            f"{' '.join(missing)}",
            file=sys.stderr,
        )
        return 2
    try:
        return demo(options)
    except launch.JobError as failure:
        print(f"tide.demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tide.demo: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
