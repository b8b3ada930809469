"""Names that mean nothing, values that are none, places that are not there: over every command and flag."""

from collections.abc import Iterator

from lite_selfplay.tasks import task_names

from .wrong import LONG_NAME, TRAIN, Request

ODD_TASKS = (
    "arithmetic:digit=2", "arithmetic:digits=x", "arithmetic:digits=-1", "arithmetic:ops=^",
    "arithmetic:max=1e9", "arithmetic:digits=2,digits=3", "reasoning-gym:no", "reasoning-gym:", "stories:steps=9",
    "letters:named=99", "letters:named", "letters:=", "hub:", "hub:/", "hub::test",
    "hub:no/such", "hub:no/such,kind=poem", "hub:no/such:test,problem=", "gsm8k", "gsm8k:splt=test",
    "gsm8k:data_dir=nowhere", "gsm8k:sha256=zz", "deepmath:difficulty=x", "math500:revision=no", "multiplication:x=1",
    "equations:digits=0", "nosuch.jsonl", ".jsonl", f"{LONG_NAME}.jsonl", f"letters:named={LONG_NAME}", ":", "",
    "../../../x.jsonl", "/", "nosuch.py:f", "nosuch.py", f"{LONG_NAME}.py:f", ".py:f", "task.py:",
)  # fmt: skip
ASSIGNMENTS = (
    "", "=", "a", "a.b", "=3", "run=3", "run.steps", "run.stepps=3", "seats.C.lr=1", "roles.x.beta=1",
    "game.rewardd=coop", "game.reward=cooop", "run.steps=[", "run.steps={a: 1}", "model=3", "game=3", "roles=5",
    "seats=null.x", "run.dir=3", "seats.A=4", "tasks.train=3", "eval=yes", "*.lr=3", "run..steps=3", ".=1", "run.=1",
    "seats.*.lr=x", "seats.*=3", "roles.*.loss=no", "run.steps=&a [*a]", "run.seed=2026-99-99", "game.name=[agon]",
    "model.name=", "cold_start.source=x", "cold_start.roles=[]", "preset=no", "steps=0",
    f"run.{LONG_NAME}=1", "run.steps=!!python/object/apply:os.system [ls]", "tasks.knowledge={a: 1}", "run.stop=3",
    "run.report_to=no", "roles.drafter.stop=3", "model.thinking=maybe", "eval.tasks=[]", "eval.every=0",
)  # fmt: skip
OTHERS = (
    "", "nosuch", "train --resume nosuch", "train agon --resume nosuch", "train --resume nosuch --preset demo",
    "train --no-such-flag", "train agon --preset demo --config nosuch.yaml", "eval", "report", "list", "list nosuch",
    "eval nosuch --tasks letters", "eval tiny", "eval tiny --tasks leters", "eval tiny --tasks letters --mode cascad",
    "eval tiny --tasks letters --precision 8bit", "eval tiny --tasks letters --data-dir nosuch",
    "eval tiny --tasks gsm8k --data-dir .", "eval tinny --tasks letters", "eval . --tasks letters",
    "eval ./nosuch/model --tasks letters", "eval no/such/model --tasks letters", "eval m.gguf --tasks letters",
    "report nosuch", "report nosuch --choose best", "report . --out .", "report nosuch --figures",
    "report . --figures --json", "doctor nosuch", "plan", "plan --model no",
    "plan --gpu t5 --model tiny", "plan --model tiny --game agonn", "plan --model tiny --preset dmo", "config",
    "config show", "config nosuch", "config show nosuch.yaml", "config show . --json", "config validate nosuch.yaml",
    "config validate .", "config keys nosuch", "config keys runn --json", "config keys run eval", "config init agonn",
    "config init agon --tasks leters", "config init agon --model tinny", "config init agon --out .",
    "config init agon --model tiny --out no/such/folder.yaml", "list games nosuch",
    "list games agon nosuch --json", "list games nosuch.py:G", "list games .py:G", "list tasks nosuch",
    "list tasks --jsn", "list models nosuch", "list presets nosuch",
    "view", "view nosuch", "view .", "view . . .", "view nosuch --bundle out", "view . --port x", "view . --port -1",
    "view . --port 99999", "view . --json", "why", "why nosuch", "why . --json", "why nosuch --step 0",
    "why nosuch --step x", "why kl nosuch", "why kll --json", "why kl . .", "why kl --step 1",
    "list runs nosuch", "list runs nosuch --json", "list runs . .", "plan --prompts",
    "plan --game agonn --model tiny --prompts",
    "plan --model tinny --tasks letters --prompts", "plan --model tiny --tasks leters --prompts", "plan --reward x",
    "plan --model tiny --tasks letters --reward nosuch.py:f", "plan --model tiny --tasks letters --reward nosuch",
    "plan --model tiny --tasks leters --reward .py:f", "--versio",
)  # fmt: skip
PLACES = {
    "--knowledge": "", "--validation": ".jsonl", "--eval-tasks": ".jsonl", "--init": "", "--reward": ".py:f",
    "--config": "", "--resume": "", "--run-dir": "",
}  # fmt: skip
GAMES = {"--knowledge": "pasodoble", "--validation": "cpmobius"}


def names() -> Iterator[Request]:
    for command in ("train", "cold-start"):
        yield Request((command, "agonn", "--model", "tiny", "--tasks", "letters"), names=("agon",))
        yield Request((command, "agon", "--model", "tinny", "--tasks", "letters"), names=("tiny",))
        yield Request((command, "agon", "--model", "tiny", "--tasks", "leters"), names=("letters",))
        yield Request((command, "agon", "--preset", "dmo"), names=("demo",))
        yield Request((command, "agon"))
        yield Request((command, "agon", "--model"))
        yield Request((command, "agon", "--model", "tiny", "--no-such-flag"))
        yield Request((command, "agon", "--model", "", "--tasks", "letters"))
        yield Request((command, "", "--model", "tiny", "--tasks", "letters"))
        yield Request((command, "agon", "grpo", "--model", "tiny"))
        yield Request((command, "agon", "--model", LONG_NAME, "--tasks", "letters"))
        yield Request((command, LONG_NAME, "--model", "tiny", "--tasks", "letters"))
        yield Request((command, "agon", "--model", f"./{LONG_NAME}", "--tasks", "letters"))
        yield Request((command, "agon", "--model", f"{LONG_NAME}.gguf", "--tasks", "letters"))
        yield Request((command, f"{LONG_NAME}.py:G", "--model", "tiny", "--tasks", "letters"))
        yield Request((command, "agon", "--preset", LONG_NAME))
    for odd in ODD_TASKS:
        yield Request((*TRAIN[:4], "--tasks", odd))
        yield Request(("eval", "tiny", "--tasks", odd))
    for name in task_names():
        yield Request((*TRAIN[:4], "--tasks", f"{name}:nosuch=1"), names=("nosuch",) if ":" not in name else ())
    for backend in ("unslot", "cuda", ""):
        yield Request((*TRAIN, "--backend", backend))
    for precision in ("8bit", "fp64", "", "4 bit"):
        yield Request((*TRAIN, "--precision", precision))
    for tracker in ("wandbb", "tensorbord", ""):
        yield Request((*TRAIN, "--report-to", tracker))
    for assignment in ASSIGNMENTS:
        yield Request((*TRAIN, "--set", assignment))
    for line in OTHERS:
        yield Request(tuple(line.split()))


def places() -> Iterator[Request]:
    for flag, ending in PLACES.items():
        base = () if flag == "--resume" else (GAMES.get(flag, "agon"), "--model", "tiny", "--tasks", "letters")
        nowhere = "/proc/no/such" if flag == "--run-dir" else "no/such"
        for odd in (LONG_NAME + ending, f"no/{'y' * 300}/such{ending}", nowhere, "/".join(["z" * 200] * 30) + ending):
            yield Request(("train", *base, flag, odd))
    for command in ("report", "view", "why", "why kl", "list runs", "eval", "config show", "config validate"):
        more = ("--tasks", "letters") if command == "eval" else ()
        yield Request((*command.split(), LONG_NAME, *more))
    yield Request(("report", "nosuch", "--out", LONG_NAME))
    yield Request(("view", "nosuch", "--bundle", LONG_NAME))
    yield Request(("plan", "--model", "tiny", "--reward", f"{LONG_NAME}.py:f", "--tasks", "letters"))
    yield Request(("config", "init", "agon", "--model", "tiny", "--out", LONG_NAME))
    yield Request(("eval", "tiny", "--tasks", "gsm8k", "--data-dir", LONG_NAME))
    yield Request((*TRAIN, "--set", f"cold_start.source={LONG_NAME}.jsonl", "--cold-start"))
    yield Request((*TRAIN, "--set", "cold_start.roles=[x]", "--cold-start"))
    yield Request((*TRAIN, "--set", f"cold_start.tasks={LONG_NAME}.jsonl", "--cold-start"))


REQUESTS = [*names(), *places()]
