"""One step of Agon in one file: plain PyTorch, transformers and PEFT, and nothing of lite-selfplay.

    python examples/one_step.py                     # plays a step with a random model, and prints it as it goes
    python examples/one_step.py --run RUN --step 2  # computes a step of a run again, from what its folder holds

The first: two adapters over one frozen base; A drafts, B reads each draft without its answer and answers too; both are
paid, and each learns from its own words. The second checks the library from outside: from the tokens of a run in full
precision (`train agon --model tiny --precision fp32 --keep-tokens --save-every 1`) it works out each seat's gradient
and weights, and compares them with the run's own. Shapes: T is the number of tokens of a completion.
"""

import argparse
import json
import random
import re
from pathlib import Path

import torch
import yaml
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils import clip_grad_norm_, get_total_norm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ASK = (
    "\n\nReason step by step, then recap your solution in a few short sentences, and end with the final result alone "
    "between <answer> and </answer>."
)
RIVAL = (
    "\n\nHere is a rival's attempt, which may or may not be correct. Do not trust it and do not repeat it: check it, "
    "and solve the problem yourself. You win by being right where the rival is wrong.\n```\n{}\n```"
)
FORM = re.compile(r"[^<>]*<answer>[^<>]*\S[^<>]*</answer>\s*")
CHAT = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


# The base: a random Qwen3 of 0.1 million parameters over bytes, the one that lite-selfplay calls `tiny`
def make_tiny(folder: Path) -> None:
    """Write the model into a folder: the same weights everywhere, from a generator of their own."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [code for code in range(256) if code not in visible]
    spelling = {byte: chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)}
    bytewise = Tokenizer(models.BPE(vocab={spelling[byte]: byte for byte in range(256)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(["<pad>", "<s>", "</s>"])
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, chat_template=CHAT, **special)
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    ids = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}
    config = Qwen3Config(**sizes, **heads, **ids, tie_word_embeddings=False, dtype="float32")
    config.save_pretrained(folder)
    with torch.device("meta"):
        tensors = dict(sorted(Qwen3ForCausalLM(config).state_dict().items()))
    generator = torch.Generator().manual_seed(20_240_601)
    for name, empty in tensors.items():
        size, ones = 0.2 if name == "lm_head.weight" else 0.02, name.endswith("norm.weight")
        drawn = torch.ones(empty.shape) if ones else size * torch.randn(empty.shape, generator=generator)
        tensors[name] = drawn
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(base: str, seats, dtype=torch.float32):
    """A base, frozen, with a LoRA adapter a seat; and its tokenizer."""
    if base == "tiny":
        base = Path("~/.cache/one-step-tiny").expanduser()
        if not (base / "model.safetensors").exists():
            make_tiny(base)  # its last file is the weights
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, attn_implementation="eager")
    for seat, (rank, alpha) in seats.items():
        lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        if hasattr(model, "peft_config"):
            model.add_adapter(seat, lora)
        else:
            model = get_peft_model(model, lora, adapter_name=seat, autocast_adapter_dtype=False)
    return model.to(dtype).eval(), AutoTokenizer.from_pretrained(base)


def weights_of(model, seat: str):
    """A seat's trainable tensors, by the names under which PEFT saves them."""
    mark = f".{seat}.weight"
    return {n.removesuffix(mark) + ".weight": p for n, p in model.named_parameters() if n.endswith(mark)}


# The arithmetic
def advantages(rewards):
    """(r - mean) / (standard deviation + 1e-4) within a group; None where all are equal: such a group is left out."""
    r = torch.tensor(rewards, dtype=torch.float64)
    return ((r - r.mean()) / (r.std() + 1e-4)).tolist() if len(set(rewards)) > 1 else [None] * len(rewards)


def logprobs(model, prompt_ids, token_ids, temperature):
    """The log-probability (T,) of each token of a completion after its prompt."""
    ids = torch.tensor([[*prompt_ids, *token_ids]])
    logits = model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(token_ids)[:, None])[:, 0]


def loss_of(model, rows, beta=0.0, reference=None):
    """GRPO's: the mean over rows of the mean over tokens of -A p / p_old, with p_old = p, and beta times the KL term.

    A row is (prompt_ids, token_ids, temperature, advantage); `reference` holds its log-probabilities (T,) there.
    """
    total = torch.zeros((), dtype=torch.float64)
    for i, (prompt_ids, token_ids, temperature, advantage) in enumerate(rows):
        p = logprobs(model, prompt_ids, token_ids, temperature)
        terms = -advantage * torch.exp(p - p.detach())
        if beta:
            terms = terms + beta * (torch.exp(reference[i] - p) - (reference[i] - p) - 1)
        total = total + terms.mean() / len(rows)
    return total


# A step, played
def recap(draft: str) -> str:
    """What the rival may see: the text before the answer, without boxes."""
    return re.sub(r"\\boxed\{[^}]*\}", "", draft.split("<answer>")[0]).strip().replace("```", "'''")


@torch.no_grad()
def sample(model, tokenizer, prompts, most: int):
    """A completion of each prompt: (prompt_ids, token_ids, text)."""
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": most}
    said = []
    for prompt in prompts:
        turn = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        found = model.generate(torch.tensor([ids]), **options, pad_token_id=tokenizer.pad_token_id)[0].tolist()
        said.append((ids, found[len(ids) :], tokenizer.decode(found[len(ids) :], skip_special_tokens=True)))
    return said


def play(problems: int = 4, n: int = 8, most: int = 24, rate: float = 5e-3, seed: int = 0):
    """Play a step and learn from it, in the order of the paper's Algorithm 1; gives what each seat's update was."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model, tokenizer = load("tiny", {"A": (16, 32), "B": (16, 32)})
    for tensor in (p for name, p in weights_of(model, "B").items() if "lora_B" in name):
        torch.nn.init.normal_(tensor, std=1e-3)  # so that B does not begin as A
    drafting, challenging = [], []
    for number in range(problems):
        letters = "".join(sorted(rng.sample("abcdefghijkl", 10)))
        problem = f"Write one of these letters: {letters}"
        model.set_adapter("A")
        drafts = sample(model, tokenizer, [problem + ASK] * n, most)
        model.set_adapter("B")
        prompts = [problem + ASK + RIVAL.format(recap(text)) for _, _, text in drafts]
        challenges = sample(model, tokenizer, prompts, most)
        right = [[float(any(c in letters for c in text)) for *_, text in said] for said in (drafts, challenges)]
        form = [[0.5 * bool(FORM.fullmatch(text)) for *_, text in said] for said in (drafts, challenges)]
        drafted = [2 * c + f for c, f in zip(right[0], form[0], strict=True)]
        challenged = [2 * c + c * (1 - d) + f for c, d, f in zip(right[1], right[0], form[1], strict=True)]
        print(f"problem {number + 1}: A right {right[0].count(1)} of {n}, B {right[1].count(1)} of {n}")
        print(f"  rewards of A's drafts     {drafted}\n  rewards of B's challenges {challenged}")
        for rows, said, rewards in ((drafting, drafts, drafted), (challenging, challenges, challenged)):
            pairs = zip(said, advantages(rewards), strict=True)
            rows += [(ids, tokens, 1.0, a) for (ids, tokens, _), a in pairs if a is not None and tokens]
    for seat, rows in (("A", drafting), ("B", challenging)):
        model.set_adapter(seat)  # and its weights are the only ones that need a gradient
        own = list(weights_of(model, seat).values())
        optimizer = torch.optim.AdamW(own, lr=rate, weight_decay=0.0)
        loss = loss_of(model, rows)
        loss.backward()
        norm = clip_grad_norm_(own, 1.0)
        optimizer.step()
        yield seat, {"rows": len(rows), "loss": loss.item(), "gradient": float(norm)}


# A step, computed again from a run's folder
def recompute(run: Path, step: int) -> dict[str, dict[str, float]]:
    """A step of a run again, in float64: how far each seat's gradient and weights are from the run's own.

    The gradient after clipping is read from AdamW's first moment: g = (m' - 0.9 m) / 0.1. Steps count from 1.
    """
    config = yaml.safe_load((run / "config.yaml").read_text())
    facts = json.loads((run / "metrics.jsonl").read_text().splitlines()[step - 1])
    tokens = load_file(run / "tokens" / f"step-{step}.safetensors")
    before, after = (run / "checkpoints" / f"step-{k}" for k in (step - 1, step))
    moments, moved = (load_file(folder / "optimizer.safetensors") for folder in (before, after))
    kept = [kept["name"] for kept in json.loads((before / "state.json").read_text())["snapshots"]]
    seats = {seat: (own["rank"], own["alpha"]) for seat, own in config["seats"].items()}
    model, _ = load(config["model"]["name"], seats, torch.float64)

    def put(seat: str, file: Path) -> None:
        for name, tensor in load_file(file).items():
            weights_of(model, seat)[name].data.copy_(tensor)

    for role, stream in facts["streams"].items():
        seat, beta, reference = stream["seat"], config["roles"][role]["beta"], None
        if not (rows := rows_of(run, step, role, tokens, beta)):
            continue
        model.set_adapter(seat)
        adapter = before / "adapters" / seat / "adapter_model.safetensors"
        if beta:  # towards the seat as it entered training, which is itself before the first step
            name = f"{seat}@start"
            put(seat, before / f"snapshot-{kept.index(name)}.safetensors" if name in kept else adapter)
            with torch.no_grad():
                reference = [logprobs(model, *row[:3]) for row in rows]
        put(seat, adapter)
        loss_of(model, rows, beta, reference).backward()
    found = {}
    for seat in seats:
        own = {n: p for n, p in weights_of(model, seat).items() if p.grad is not None}
        if not own:
            continue
        theirs = load_file(after / "adapters" / seat / "adapter_model.safetensors")
        norm = float(clip_grad_norm_(list(own.values()), config["seats"][seat]["clip"]))
        off, wrong, changes = [], [], []
        for name, p in own.items():
            path = f"{seat}/{name.removesuffix('.weight')}.{seat}.weight"
            m, v = (moments.get(f"{path}/{key}", torch.zeros(())).double() for key in ("exp_avg", "exp_avg_sq"))
            off.append(p.grad - (moved[f"{path}/exp_avg"] - 0.9 * m) / 0.1)
            m, v, k = 0.9 * m + 0.1 * p.grad, 0.999 * v + 0.001 * p.grad**2, float(moved[f"{path}/step"])
            changes.append(facts["seats"][seat]["lr"] * m / (1 - 0.9**k) / ((v / (1 - 0.999**k)).sqrt() + 1e-8))
            wrong.append(p.data - changes[-1] - theirs[name])
        size, distance = get_total_norm([p.grad for p in own.values()]), get_total_norm(changes)
        found[seat] = {
            "gradient": norm,
            "gradient in the run": facts["seats"][seat]["grad_norm"],
            "gradients differ by": float(get_total_norm(off) / size),
            "weights differ by, of the step": float(get_total_norm(wrong) / distance),
        }
    return found


def rows_of(run: Path, step: int, role: str, tokens, beta):
    """A role's rows of a step that are in its loss: those with an advantage, and in a KL term those without one too."""
    lines = map(json.loads, (run / "episodes.jsonl").read_text().splitlines())
    own = [line["advantage"] for line in lines if line["step"] == step and line["role"] == role]
    prompts = tokens[f"{role}/prompt_ids"].split(tokens[f"{role}/prompt_tokens"].tolist())
    said = tokens[f"{role}/token_ids"].split(tokens[f"{role}/tokens"].tolist())
    columns = zip(prompts, said, tokens[f"{role}/temperature"].tolist(), own, strict=True)
    rows = [(p.tolist(), t.tolist(), heat, a) for p, t, heat, a in columns if (a is not None or beta) and len(t)]
    share = len(rows) / max(1, sum(a is not None for *_, a in rows))  # a mean over all is to be one over those
    return [(*row, (a or 0.0) * share) for *row, a in rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run folder, made with --keep-tokens --save-every 1")
    parser.add_argument("--step", type=int, default=1, help="which of its steps, from 1")
    given = parser.parse_args()
    for seat, figures in recompute(given.run, given.step).items() if given.run else play():
        print(f"{seat}: " + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
