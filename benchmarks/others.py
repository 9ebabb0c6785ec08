"""`perf-callbacks try` on nine training programs of other people: does it find the best setting?

    OMP_NUM_THREADS=1 python benchmarks/others.py             # clones the repositories into out/others; 40 minutes
    OMP_NUM_THREADS=1 python benchmarks/others.py --only reward makemore
    OMP_NUM_THREADS=1 python benchmarks/others.py --only reward --card   # runs it for 40 seconds, and prints the table

The programs are not changed. Models are tiny and random, and so is the data, which is made here. Each remedy is tried,
whether the verdict calls for it or not. The table compares the best setting of those that `try` chooses by itself with
the best setting of all. It also says if a trial changed, made or removed a file of the program.

The programs need transformers, trl, lightning, requests and sentencepiece.
"""

import argparse
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PERF = [sys.executable, "-m", "perf_callbacks"]
REMEDIES = "loader,optimizer,attention,gc,logging,recompute,threads"
TRL = "--per_device_train_batch_size 4 --max_steps 400 --report_to none --bf16 False"
SMALL = "--device=cpu --compile=False --dtype=float32 --eval_iters=1 --gradient_accumulation_steps=1"


LETTERS = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --dtype=float32 --eval_iters=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --lr_decay_iters=2000 "
    "--dropout=0.0"
)
"""The command for a CPU in nanoGPT's README, without its number of steps."""


@dataclass
class Program:
    """A program: where it is from, how it is started, and if it writes in its steps or resumes."""

    repository: str
    commit: str
    command: str
    writes: bool = True

    @property
    def folder(self):
        return self.repository.partition("/")[2]


TRL_AT = "huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8"
LLAMA2C_AT = "karpathy/llama2.c", "350e04fe35433e6d2941dce5a1f53308f87058eb"
LIGHTNING_AT = "Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414"
NANOGPT_AT = "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"
MINGPT_AT = "karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26"
FORECASTING_AT = "sktime/pytorch-forecasting", "062aeb47b75d589dcce621c04572181e3584a301"
TRANSFORMERS_AT = "huggingface/transformers", "005c23ae8f6dca810fa2a0e5cecabe0cfb24aaf3"
MAKEMORE_AT = "karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4"

PROGRAMS = {
    "sft": Program(
        *TRL_AT,
        f"trl/scripts/sft.py --model_name_or_path tiny --dataset_name texts {TRL} --output_dir out/sft "
        "--gradient_checkpointing False --eos_token '</s>' --logging_steps 1",
        writes=False,
    ),
    "reward, saves every 10 steps": Program(
        *TRL_AT,
        f"trl/scripts/reward.py --model_name_or_path tiny --dataset_name pairs {TRL} --output_dir out/reward "
        "--eos_token '</s>' --save_steps 10",
        writes=False,
    ),
    "dpo": Program(
        *TRL_AT,
        f"trl/scripts/dpo.py --model_name_or_path tiny --dataset_name pairs {TRL} --output_dir out/dpo",
        writes=False,
    ),
    "lightning": Program(*LIGHTNING_AT, "examples/pytorch/basics/transformer.py"),
    "classification": Program(
        *TRANSFORMERS_AT,
        "examples/pytorch/text-classification/run_classification.py --model_name_or_path tiny --do_train "
        "--train_file train.json --validation_file validation.json --text_column_names sentence "
        "--metric_name accuracy --num_train_epochs 10 --report_to none --output_dir out/classification",
    ),
    "nbeats": Program(*FORECASTING_AT, "examples/nbeats.py"),
    "makemore": Program(*MAKEMORE_AT, "makemore.py -i names.txt -o names"),
    "makemore GRU": Program(*MAKEMORE_AT, "makemore.py -i names.txt -o gru --type gru"),
    "adder": Program(*MINGPT_AT, "projects/adder/adder.py"),
    "chargpt": Program(*MINGPT_AT, "projects/chargpt/chargpt.py --data.block_size=64 --trainer.batch_size=16"),
    "llama2.c": Program(
        *LLAMA2C_AT,
        f"train.py {SMALL} --batch_size=4 --max_seq_len=64 --dim=128 --n_layers=4 --n_heads=4 --n_kv_heads=4",
    ),
    "nanoGPT fresh": Program(
        *NANOGPT_AT,
        f"train.py --dataset=local {SMALL} --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128",
    ),
    "nanoGPT, resumed": Program(*NANOGPT_AT, f"{LETTERS} --init_from=resume --max_iters=100000"),
}


def clone(program, home):
    """Return the directory of the program, at its commit."""
    folder = home / program.folder
    if not folder.exists():
        address = f"https://github.com/{program.repository}"
        # Files of other commits are not needed: transformers' would take more than a gigabyte.
        subprocess.run(["git", "clone", "--quiet", "--filter=blob:none", "--no-checkout", address, folder], check=True)
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", program.commit], check=True)
    prepare = {"trl": make_texts, "pytorch-lightning": make_wikitext, "minGPT": make_letters}
    prepare |= {"llama2.c": make_stories, "nanoGPT": make_checkpoint, "transformers": make_sentences}
    prepare.get(program.folder, lambda _: None)(folder)
    return folder


WORDS = [f"w{number}" for number in range(500)]


def words(draw, least, most):
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


def make_model(folder):
    """Make a tokenizer of 500 words, and a Llama with 6 layers of width 192."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    fast.save_pretrained(folder / "tiny")
    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 6}
    config = LlamaConfig(
        vocab_size=504, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes
    )
    LlamaForCausalLM(config).save_pretrained(folder / "tiny")


def make_texts(folder):
    """Make a model, texts, and pairs of answers."""
    if (folder / "tiny").exists():
        return
    make_model(folder)
    draw = random.Random(0)
    texts = [{"text": words(draw, 40, 120)} for _ in range(2000)]
    pairs = [
        {"prompt": words(draw, 20, 20), "chosen": " " + words(draw, 30, 60), "rejected": " " + words(draw, 30, 60)}
        for _ in range(2000)
    ]
    # Not "text": that is a builder of datasets, which would read the pages of the repository.
    for name, rows in ("texts", texts), ("pairs", pairs):
        (folder / name).mkdir()
        (folder / name / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def make_sentences(folder):
    """Make a model, sentences of two classes, and a metric that needs no download."""
    if (folder / "tiny").exists():
        return
    make_model(folder)
    draw = random.Random(0)
    for name, count in ("train", 4000), ("validation", 100):
        rows = [{"sentence": words(draw, 10, 60), "label": draw.randint(0, 1)} for _ in range(count)]
        (folder / f"{name}.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (folder / "accuracy").mkdir()
    (folder / "accuracy" / "accuracy.py").write_text(ACCURACY)


ACCURACY = """import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum([one == other for one, other in zip(predictions, references)]) / len(references)}
"""


def make_wikitext(folder):
    """Make the file that Lightning's example would download."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    if not (data / "wikitext-2.txt").exists():
        draw = random.Random(0)
        (data / "wikitext-2.txt").write_text("\n".join([words(draw, 10, 30) for _ in range(5000)]))


def make_letters(folder):
    """Make a text for minGPT's character model, which continues "O God, O God!" in between."""
    if not (folder / "input.txt").exists():
        draw = random.Random(0)
        letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz \n", k=500_000))
        (folder / "input.txt").write_text("O God, O God!" + letters)


def make_tokens(path, number, kinds=1000):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draw = random.Random(0)
        path.write_bytes(b"".join([draw.randrange(kinds).to_bytes(2, "little") for _ in range(number)]))


def make_stories(folder):
    """Make two files of random tokens: one for llama2.c's evaluation, one for its training."""
    for name in ("data00.bin", "data01.bin"):
        make_tokens(folder / "data/TinyStories_all_data" / name, 300_000)


def make_letters_of_shakespeare(folder):
    """Make random letters in place of those that nanoGPT's `prepare.py` would download."""
    data = folder / "data/shakespeare_char"
    for name, number in ("train.bin", 1_003_854), ("val.bin", 111_540):
        make_tokens(data / name, number, kinds=65)
    letters = [chr(32 + number) for number in range(65)]
    known = {"vocab_size": 65, "itos": dict(enumerate(letters)), "stoi": {one: at for at, one in enumerate(letters)}}
    (data / "meta.pkl").write_bytes(pickle.dumps(known))


def make_checkpoint(folder):
    """Make random tokens, and the checkpoint from which nanoGPT resumes."""
    make_letters_of_shakespeare(folder)
    for name in ("train.bin", "val.bin"):
        make_tokens(folder / "data/local" / name, 300_000)
    if not (folder / "out-shakespeare-char/ckpt.pt").exists():
        options = "--max_iters=2 --eval_interval=1 --always_save_checkpoint=True"
        subprocess.run(f"{sys.executable} {LETTERS} {options}", shell=True, cwd=folder, check=True, capture_output=True)


def files(folder):
    """Return size and time of each file, without those of git and compiled Python."""
    kept = [path for path in folder.rglob("*") if path.is_file() and not {".git", "__pycache__"} & {*path.parts}]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in kept}


def environment(folder):
    paths = [os.environ.get("PYTHONPATH", "")]
    if folder.name == "minGPT":  # a package that isn't installed
        paths.append(str(folder))
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def tried(program, folder, arguments):
    """Try each remedy of the program. Return the result, with the number of files that changed."""
    options = f"--json --steps {arguments.steps} --seconds {arguments.seconds} --rounds {arguments.rounds}"
    line = f"{options} {'--yes ' if program.writes else ''}--only {REMEDIES} {program.command}"
    before = files(folder)
    done = subprocess.run(
        f"{' '.join(PERF)} try {line}",
        shell=True, cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    after = files(folder)
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    return json.loads(done.stdout) | {"changed": len(changed)}


TITLE = (
    "| program | step | called for | best of these | best of all | share | runs | files changed |\n" + 8 * "|---" + "|"
)


def row(name, result):
    """Return a line of the table."""
    settings = [one for one in result["settings"] if one["faster"]]
    single = [one for one in settings if one["remedy"]]
    chosen = [one for one in single if one["called_for"]]
    best = max([one for one in settings if one["low"] > 1], key=lambda one: one["faster"], default=None)
    found = max([one for one in chosen if one["low"] > 1], key=lambda one: one["faster"], default=None)

    def told(one):
        return f"{one['setting']}: {one['faster']:.2f}x [{one['low']:.2f}, {one['high']:.2f}]" if one else "nothing"

    share = (found["faster"] - 1 if found else 0) / (best["faster"] - 1) if best else None
    cells = [
        name,
        f"{sum(settings_of(result)) / len(settings_of(result)) * 1e3:.0f} ms",
        ", ".join([one["setting"] for one in chosen]) or "nothing",
        told(found),
        told(best),
        "—" if share is None else f"{share:.0%}",
        f"{result['launches']} in {result['seconds'] / 60:.1f} min",
        str(result["changed"]),
    ]
    return f"| {' | '.join(cells)} |"


def settings_of(result):
    """Return the step times of the program as it is."""
    return result["settings"][0]["step_seconds"]


def measured(command, folder, out, seconds=40, **variables):
    """Run a command for some seconds, measured from outside."""
    training = subprocess.Popen(
        f"exec {' '.join(PERF)} run {command}",
        shell=True, cwd=folder, env=environment(folder) | variables | {"PERF_CALLBACKS_OUTPUT_DIR": str(out)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        training.wait(seconds)
    except subprocess.TimeoutExpired:
        training.send_signal(signal.SIGINT)
        try:
            training.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(training.pid, signal.SIGKILL)
            training.wait()


def show_card(program, folder):
    """Run the program for 40 seconds, and print the table of the run."""
    with tempfile.TemporaryDirectory() as out:
        measured(program.command, folder, out)
        subprocess.run([*PERF, "show", out], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[*PROGRAMS], help="programs whose names begin so")
    parser.add_argument("--home", type=Path, default=Path("out/others"), help="directory of clones and results")
    parser.add_argument("--card", action="store_true", help="run each program for 40 seconds, and print its table")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    home = arguments.home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    print(TITLE)
    for name, program in PROGRAMS.items():
        if not name.startswith(tuple(arguments.only)):
            continue
        folder = clone(program, home)
        if arguments.card:
            show_card(program, folder)
            continue
        kept = home / f"{name.partition(',')[0]}.json"
        if not kept.exists():
            kept.write_text(json.dumps(tried(program, folder, arguments)))
        print(row(name, json.loads(kept.read_text())), flush=True)


if __name__ == "__main__":
    main()
