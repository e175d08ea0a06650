"""Train a GPT-2, on a GPU or on a laptop. Read from top to bottom.

    python examples/train_gpt2.py                                  # what this machine can do
    python examples/train_gpt2.py --n-layer 4 --batch_size=12      # nanoGPT's flags
    python examples/train_gpt2.py --config my_run.toml             # the same names in a file

The text is Python's own standard library unless `--data` says otherwise, so nothing is downloaded.
In `--out-dir` (out/) it leaves metrics.jsonl, loss.png and checkpoint.blutrain. Run again, it
resumes: the losses are bit for bit those of a run that was never stopped. Ctrl-C saves first.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

import blutrain as bt
from blutrain import data, nn, optim
from blutrain import random as bt_random
from blutrain.errors import BlutrainError, CheckpointError, DataError, message
from blutrain.io.checkpoint import load_checkpoint, restore, save_checkpoint
from blutrain.io.metrics import MetricsLog, plot_losses
from blutrain.io.settings import parse
from blutrain.models import GPT2, PRESETS, GPT2Config
from blutrain.profiler import peak_flops


def setting(default: Any, text: str, choices: list[str] | None = None) -> Any:
    """A field with its line in --help."""
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass
class Settings:
    """What can be set; the defaults fit two CPU cores and four minutes."""

    # Where and from what.
    out_dir: str = setting("out", "folder of checkpoint, metrics and plot")
    resume: str = setting("auto", "auto: if there is a checkpoint", ["auto", "never", "must"])
    data: str = setting("stdlib", "stdlib, a text file, or a folder of token files")
    tokenizer: str = setting("bytes", "for text", ["bytes", "bpe"])
    bpe_vocab: int = setting(50257, "tokens of a BPE")
    seed: int = setting(1337, "of weights, order and dropout")
    # The model: a preset, and what is to be otherwise.
    preset: str = setting("tiny", "sizes to start from", list(PRESETS))
    n_layer: int | None = setting(None, "blocks")
    n_head: int | None = setting(None, "heads")
    n_embd: int | None = setting(None, "channels")
    block_size: int | None = setting(None, "tokens of context")
    vocab_size: int | None = setting(None, "rows of the token table; the text's, padded")
    dropout: float = setting(0.0, "probability")
    bias: bool = setting(True, "biases in linear layers and layer norms")
    # The training.
    max_steps: int = setting(2500, "optimizer steps")
    batch_size: int = setting(12, "windows a micro-batch")
    gradient_accumulation_steps: int = setting(1, "micro-batches a step")
    learning_rate: float = setting(2e-3, "highest")
    min_lr: float = setting(2e-4, "at the end")
    warmup_steps: int = setting(100, "steps of rising rate")
    schedule: str = setting("cosine", "after warm-up", ["cosine", "linear"])
    weight_decay: float = setting(0.1, "of matrices; vectors are not decayed")
    beta1: float = setting(0.9, "AdamW's first")
    beta2: float = setting(0.99, "AdamW's second")
    grad_clip: float = setting(1.0, "largest gradient norm; 0 for none")
    # Looking at it.
    eval_interval: int = setting(250, "steps between evaluations")
    eval_batches: int = setting(40, "batches an evaluation")
    checkpoint_interval: int = setting(250, "steps between checkpoints")
    prompt: str = setting("def ", "of the sample at the end")
    sample_tokens: int = setting(400, "tokens of the sample; 0 for none")
    temperature: float = setting(0.8, "of the sample")
    top_k: int = setting(50, "of the sample; 0 for all")


# GPT-2 124M for an 80 GiB card, on the text's own BPE.
GPU_DEFAULTS: dict[str, Any] = {
    "preset": "small",
    "tokenizer": "bpe",
    "max_steps": 1000,
    "batch_size": 16,
    "learning_rate": 6e-4,
    "min_lr": 6e-5,
    "beta2": 0.95,
    "sample_tokens": 200,
}


class Interrupts:
    """In its block the first Ctrl-C (or a scheduler's SIGTERM) is noted; a second one acts."""

    def __enter__(self) -> Interrupts:
        self.wanted = False
        self.before: dict[int, Any] = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.wanted = True
        signal.signal(number, self.before[number])


class NonFiniteError(BlutrainError, ArithmeticError):
    """The loss or a gradient became inf or nan."""


class Trainer:
    """A run: model, optimizer, data, and how far it has come."""

    def __init__(self, settings: Settings) -> None:
        self.settings = s = settings
        self.out = Path(s.out_dir)
        self.corpus = data.prepare(s.data, s.tokenizer, s.bpe_vocab)
        self.config = model_config(s, self.corpus.vocab_size)
        T = self.config.block_size
        self.loader = data.TokenLoader(self.corpus.train, s.batch_size, T, s.seed)
        self.baseline = data.unigram_entropy(self.corpus.held_out)
        bt.manual_seed(s.seed)
        self.model = GPT2(self.config)
        self.optimizer = optim.AdamW(
            optim.decay_groups(self.model, s.weight_decay),
            lr=s.learning_rate,
            betas=(s.beta1, s.beta2),
        )
        schedules = {"cosine": optim.CosineSchedule, "linear": optim.LinearSchedule}
        self.learning_rate = schedules[s.schedule](
            s.learning_rate, s.max_steps, min(s.warmup_steps, s.max_steps), s.min_lr
        )
        self.step = 0
        self.checkpoint = self.out / "checkpoint.blutrain"
        resumed = self._resume()
        self.log = MetricsLog(self.out / "metrics.jsonl", self.step if resumed else None)

    # ------------------------------------------------------------- checkpoints
    def save(self) -> None:
        """Write everything that the following steps depend on."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "random": list(bt_random.get_state()),
        }
        save_checkpoint(self.checkpoint, state, asdict(self.config))

    def _resume(self) -> bool:
        there = self.checkpoint.exists()
        if self.settings.resume == "must" and not there:
            want = f"{self.checkpoint} must be there for --resume=must"
            raise CheckpointError(message("train_gpt2", want, None, "check --out-dir"))
        if self.settings.resume == "never" or not there:
            return False
        state = load_checkpoint(self.checkpoint, asdict(self.config)).state
        asked = [dict(group) for group in self.optimizer.groups]
        restore(state, model=self.model, optimizer=self.optimizer, loader=self.loader)
        for group, own in zip(self.optimizer.groups, asked, strict=True):
            group |= own  # Betas and decay are this command's, not the checkpoint's.
        bt_random.set_state(state["random"])
        self.step = state["step"]
        return True

    # ---------------------------------------------------------------- training
    def train_step(self) -> dict[str, float]:
        """One optimizer step.

        Returns:
            The mean loss of its batches before the step, the gradient norm, the learning rate.

        Raises:
            NonFiniteError: loss or gradient is inf or nan; nothing was updated.
        """
        n = self.settings.gradient_accumulation_steps
        rate = self.learning_rate(self.step)
        self.optimizer.set_lr(rate)
        self.optimizer.zero_grad()
        random_before = bt_random.get_state()
        batches = [next(self.loader) for _ in range(n)]
        losses = []
        for loss in self._losses(batches):
            (loss / n if n > 1 else loss).backward()
            losses.append(loss.detach())
        # Reading the numbers waits for the device, so it comes last: once a step.
        norm = optim.clip_grad_norm(self.model.parameters(), self.settings.grad_clip or math.inf)
        mean, size = sum(float(loss) for loss in losses) / n, float(norm)
        if not (math.isfinite(mean) and math.isfinite(size)):
            bt_random.set_state(random_before)
            self._refuse(batches, mean)
        self.optimizer.step()
        self.step += 1
        return {"loss": mean, "grad_norm": size, "lr": rate}

    def _losses(self, batches: list[data.Batch]) -> Iterator[bt.Tensor]:
        for inputs, targets in batches:
            yield self.model.loss(bt.from_numpy(inputs), bt.from_numpy(targets))

    def _refuse(self, batches: list[data.Batch], loss: float) -> None:
        """Run the step once more, looking at every tensor, and say which was the first bad one."""
        losses = self._losses(batches)
        found = (nn.first_nonfinite(self.model, lambda: next(losses)) for _ in batches)
        first = next((name for name in found if name), "the sum of the gradients")
        do = f"lower --learning-rate or --grad-clip; {self.checkpoint} is as it was"
        what = f"the loss must be finite; first not finite: {first}"
        raise NonFiniteError(message(f"step {self.step}", what, loss, do))

    def evaluate(self) -> float:
        """The mean loss on held-out files."""
        s, T = self.settings, self.config.block_size
        batches = data.evaluation_batches(self.corpus.held_out, s.batch_size, T, s.eval_batches)
        self.model.eval()
        with bt.no_grad():
            losses = [float(loss) for loss in self._losses(list(batches))]
        self.model.train()
        return sum(losses) / len(losses)

    def sample(self) -> str:
        """A continuation of the prompt."""
        s, tokenizer = self.settings, self.corpus.tokenizer
        prompt = tokenizer.encode(s.prompt or "\n").tolist()
        n, k = s.sample_tokens, s.top_k or None
        choices = tokenizer.vocab_size
        tokens = self.model.generate(prompt, n, s.temperature, k, s.seed, choices)
        return tokenizer.decode(tokens)


def model_config(s: Settings, vocab_size: int) -> GPT2Config:
    """The preset with what was asked to be otherwise, and the text's vocabulary."""
    names = ("n_layer", "n_head", "n_embd", "block_size")
    changes = {name: getattr(s, name) for name in names if getattr(s, name) is not None}
    # Padded to a multiple of 64: rows of logits then start on a cache line.
    rows = s.vocab_size or -(-vocab_size // 64) * 64
    if rows < vocab_size:
        do = "leave --vocab-size out"
        raise DataError(message("--vocab-size", f"must be at least {vocab_size}", rows, do))
    return replace(PRESETS[s.preset], vocab_size=rows, dropout=s.dropout, bias=s.bias, **changes)


def train(run: Trainer) -> None:
    """Run to the last step, or to Ctrl-C."""
    s = run.settings
    tokens = s.batch_size * s.gradient_accumulation_steps * run.config.block_size
    flops = tokens * run.model.flops_per_token()
    peak = peak_flops()
    bar = tqdm(initial=run.step, total=s.max_steps, unit="step", disable=None, dynamic_ncols=True)
    with bar, Interrupts() as interrupts:
        bar.set_postfix_str("the first step may compile kernels")
        while run.step < s.max_steps and not interrupts.wanted:
            start = time.perf_counter()
            values = run.train_step()
            seconds = time.perf_counter() - start
            values |= {"tokens_per_second": tokens / seconds, "mfu": flops / seconds / peak}
            last = run.step == s.max_steps
            if run.step % s.eval_interval == 0 or last:
                values["held_out_loss"] = run.evaluate()
                bar.write(
                    f"step {run.step}: training loss {values['loss']:.4f}, "
                    f"held-out loss {values['held_out_loss']:.4f}"
                )
            run.log.write(step=run.step, **values)
            if run.step % s.checkpoint_interval == 0 or last or interrupts.wanted:
                run.save()
            bar.set_postfix_str(
                f"loss {values['loss']:.3f}, {values['tokens_per_second']:,.0f} tok/s, "
                f"MFU {values['mfu']:.1%}",
                refresh=False,
            )
            bar.update()
    if interrupts.wanted:
        print(f"stopped at step {run.step}; the same command goes on from {run.checkpoint}")
        sys.exit(130)


def main() -> None:
    """Parse, train, sample, plot."""
    defaults = GPU_DEFAULTS if bt.TARGET == "cuda" else {}
    if defaults and not data.have_tokenizers():
        print("byte tokens, for want of the tokenizers library: pip install 'blutrain[data]'")
        defaults = {**defaults, "tokenizer": "bytes"}
    s = parse(Settings, about=__doc__.splitlines()[0], defaults=defaults)
    print(f"reading {s.data} as {s.tokenizer} tokens (kept for the next run)", flush=True)
    run = Trainer(s)
    corpus, c = run.corpus, run.config
    print(
        f"{run.model.n_parameters():,} parameters, {c.n_layer} layers, {c.n_embd} channels, "
        f"context {c.block_size}, on {bt.TARGET}\n"
        f"{len(corpus.train):,} tokens of {s.data} ({s.tokenizer}) to train on, "
        f"{len(corpus.held_out):,} held out in {corpus.folder}\n"
        f"from step {run.step} to {s.max_steps}"
    )
    train(run)
    held_out = run.evaluate()
    if s.sample_tokens:
        print("-" * 80, run.sample(), "-" * 80, sep="\n")
    if plot_losses(run.log.path, run.out / "loss.png", run.baseline):
        print(f"loss curve: {run.out / 'loss.png'}")
    print(f"metrics: {run.log.path}\ncheckpoint: {run.checkpoint}")
    print(
        f"held-out loss {held_out:.4f} nats a token "
        f"({held_out / math.log(2) / data.bytes_per_token(corpus):.3f} bits a byte); "
        f"unigram entropy of the same text {run.baseline:.4f}"
    )


if __name__ == "__main__":
    try:
        main()
    except BlutrainError as error:
        sys.exit(f"error: {error}")
