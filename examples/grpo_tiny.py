# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-layout", "rl-record", "rl-replay", "rl-text", "rl-value",
#     "matplotlib", "tensordict", "tokenizers", "torch", "transformers",
# ]
# ///
"""GRPO on a tiny language model: it learns to repeat the word it is asked for, and to stop.

    python examples/grpo_tiny.py
    python examples/grpo_tiny.py --seeds 0 1 2
    python examples/grpo_tiny.py --steps 300 --resume       # from its checkpoint

A tokenizer is trained on a few words, and a GPT-2 of random weights writes completions, sixteen for
each prompt: at first noise. Each is compared with the others of its prompt, on tokens that lie end
to end. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rl_layout import Segments
from rl_record import JSONLLogger, read_run
from rl_record.plot import plot_runs
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_text import LanguageModel, PromptGroupSampler, place_rewards, sample_completions
from rl_value import GRPOAdvantage, GRPOLoss

WORDS = ("red", "green", "blue", "white", "black", "grey", "pink", "gold")
TIMES = 3  # that a word is wanted


@dataclass(frozen=True)
class Settings:
    """What a run is."""

    seed: int = 0
    num_samples: int = 16  # completions of each prompt
    max_new_tokens: int = 6
    tokens_per_batch: int = 400
    epochs: int = 2
    learning_rate: float = 2e-3
    clip_epsilon: tuple[float, float] = (0.2, 0.3)
    width: int = 64
    layers: int = 2
    steps_per_checkpoint: int = 25


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train a tokenizer on prompts and words, with letters for what it has not seen."""
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=96, special_tokens=["<pad>", "<eos>", "<unk>"], show_progress=False
    )
    inner.train_from_iterator([f"say {word} {word}" for word in WORDS], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def make_model(tokenizer: PreTrainedTokenizerFast, settings: Settings) -> GPT2LMHeadModel:
    """Make a GPT-2 of random weights, without dropout."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=32,
        n_embd=settings.width,
        n_layer=settings.layers,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return GPT2LMHeadModel(config)


class Run:
    """A training run, with its log and its checkpoint in one folder."""

    def __init__(self, settings: Settings, folder: Path, *, resume: bool = False) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.folder = settings, folder
        self.tokenizer = train_tokenizer()
        self.model = make_model(self.tokenizer, settings)
        self.prompts = [self.tokenizer(f"say {word}")["input_ids"] for word in WORDS]
        end = self.tokenizer.eos_token_id
        self.wanted = [self.tokenizer(" ".join([w] * TIMES))["input_ids"] + [end] for w in WORDS]
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.loss = GRPOLoss(LanguageModel(self.model), clip_epsilon=settings.clip_epsilon)
        self.advantage = GRPOAdvantage()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate)
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(20_000),
            sampler=PromptGroupSampler(group_size=settings.num_samples),
            batch_size=settings.tokens_per_batch,
            generator=self.generator,
        )
        self.logger = JSONLLogger(folder.name, folder.parent, resume=resume)
        self.steps = 0
        if resume:
            self.load()
        else:
            self.logger.log_hparams(asdict(settings))

    def write(self) -> TensorDictBase:
        """Let the model complete every prompt, and score what it wrote."""
        rows = sample_completions(
            self.model,
            self.prompts,
            max_new_tokens=self.settings.max_new_tokens,
            eos_token_id=self.tokenizer.eos_token_id,
            num_samples=self.settings.num_samples,
            generator=self.generator,
        )
        scores = [self.score(place, written) for place, written in completions(rows)]
        return place_rewards(rows, scores)

    def score(self, prompt: int, written: list[int]) -> float:
        """The share of places that hold the wanted token; more tokens than wanted cost as well."""
        wanted = self.wanted[prompt]
        right = sum(a == b for a, b in zip(written, wanted, strict=False))
        return right / max(len(wanted), len(written))

    def train(self, steps: int) -> None:
        """Write and learn in turns; keep a checkpoint now and then."""
        while self.steps < steps:
            rows = self.advantage(self.write())
            rewards = Segments.of(rows).sum(rows["next", "reward"])
            self.buffer.empty()
            self.buffer.extend(rows)
            for _ in range(self.settings.epochs):
                for batch in self.buffer:  # whole groups, each once
                    losses = self.update(batch)
            self.steps += 1
            solved = (rewards == 1).float().mean()
            found = {"reward": rewards.mean(), "solved": solved, **losses}
            self.logger.log_metrics(found, self.steps)
            if self.steps % self.settings.steps_per_checkpoint == 0:
                self.save()

    def update(self, batch: TensorDictBase) -> dict[str, torch.Tensor]:
        """Take one step of the model."""
        losses = self.loss(batch)
        self.optimizer.zero_grad()
        losses["loss_objective"].backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def samples(self) -> list[str]:
        """What the model writes after each prompt now, one line each."""
        rows = sample_completions(
            self.model,
            self.prompts,
            max_new_tokens=self.settings.max_new_tokens,
            eos_token_id=self.tokenizer.eos_token_id,
            generator=torch.Generator().manual_seed(0),
        )
        return [
            f"say {WORDS[prompt]}: {self.tokenizer.decode(written)}"
            for prompt, written in completions(rows)
        ]

    def save(self) -> None:
        """Save what a run resumes from; the buffer is filled anew at each step."""
        state = {"steps": self.steps, "log": self.logger.state_dict()}
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        whole = {**state, **parts, "generator": self.generator.get_state()}
        torch.save(whole, self.folder / "checkpoint.pt")

    def load(self) -> None:
        """Resume from the checkpoint."""
        state = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        self.steps = state["steps"]
        self.logger.load_state_dict(state["log"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])


def completions(rows: TensorDictBase) -> list[tuple[int, list[int]]]:
    """The number of the prompt and the tokens of each completion."""
    segments = Segments.of(rows)
    lengths = segments.lengths.tolist()
    pieces = zip(rows["action"].split(lengths), rows["loss_mask"].split(lengths), strict=True)
    groups = segments.first(rows["group_ids"]).tolist()
    return [(g, piece[mask].tolist()) for g, (piece, mask) in zip(groups, pieces, strict=True)]


def main() -> None:
    """Read the options, train, and show what the model writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=150, help="of each run")
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_tiny"))
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoints")
    options = parser.parse_args()
    torch.set_num_threads(1)  # tensors as small as these are slower on several
    folders = [options.out / f"seed-{seed}" for seed in options.seeds]
    for seed, folder in zip(options.seeds, folders, strict=True):
        run, start = Run(Settings(seed), folder, resume=options.resume), time.process_time()
        print(*(f"before  {line}" for line in run.samples()[:4]), sep="\n")
        run.train(options.steps)
        print(*(f"after   {line}" for line in run.samples()[:4]), sep="\n")
        rows = run.write()
        rewards = Segments.of(rows).sum(rows["next", "reward"])
        print(
            f"seed {seed}: reward {rewards.mean():.3f}, {(rewards == 1).float().mean():.0%} solved "
            f"after {run.steps} steps, {time.process_time() - start:.0f} s of CPU",
            flush=True,
        )
        run.logger.close()
    runs = [read_run(folder) for folder in folders]
    plot_runs({"GRPO": runs}, names=["reward"]).savefig(options.out / "curves.png")
    print(f"curves: {options.out / 'curves.png'}")


if __name__ == "__main__":
    main()
