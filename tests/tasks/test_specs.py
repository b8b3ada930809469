"""Several tasks in one text, and the folder of downloaded data."""

import re
from pathlib import Path

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.runs.planning import plan
from lite_selfplay.tasks import is_data, load_task, split_specs
from lite_selfplay.tasks.hub_data import DATA_VARIABLE
from lite_selfplay.tasks.split import content_key
from lite_selfplay.verify.math import check
from tests.made import jsonl

TINY = {"game": "grpo", "model": "tiny", "precision": "fp32"}


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("gsm8k", ["gsm8k"]),
        ("mawps,svamp, gsm8k", ["mawps", "svamp", "gsm8k"]),
        ("letters:named=10,of=26,svamp", ["letters:named=10,of=26", "svamp"]),
        ("svamp,letters:named=10,of=26", ["svamp", "letters:named=10,of=26"]),
        ("letters:named=3,stories:max=9,steps=1", ["letters:named=3", "stories:max=9,steps=1"]),
        ("hub:me/sums:test,problem=a+b,kind=number,aime24", ["hub:me/sums:test,problem=a+b,kind=number", "aime24"]),
        ("reasoning-gym:chain_sum,max=3,letters", ["reasoning-gym:chain_sum,max=3", "letters"]),
        ("./my_task.py:sums:of=3,terms=2,./more.jsonl", ["./my_task.py:sums:of=3,terms=2", "./more.jsonl"]),
    ],
)
def test_a_comma_separates_tasks_and_their_options(text: str, specs: list[str]):
    assert split_specs(text) == specs


@pytest.mark.parametrize("text", ["", "a,,b", "a,", ",a"])
def test_an_empty_task_is_refused(text: str):
    with pytest.raises(TaskError, match="an empty task"):
        split_specs(text)


def test_a_file_is_one_task_whatever_its_name_and_what_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("a,b=c.jsonl").write_text("")
    assert split_specs("a,b=c.jsonl") == ["a,b=c.jsonl"]
    specs = ("gsm8k", "gsm8k:config=main", "hub:me/sums", "letters", "x.jsonl", "a.py:b")
    assert [is_data(spec) for spec in specs] == [True, True, True, False, False, False]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for split, texts in {"train": ("one?", "two?"), "test": ("three?", "four?")}.items():
        jsonl(folder / f"gsm8k_{split}.jsonl", *({"question": text, "answer": "so\n#### 5"} for text in texts))
    return folder


def test_a_folder_of_data_is_taken_where_a_spec_names_none(data: Path, tmp_path: Path):
    task = load_task("gsm8k", data_dir=str(data))
    assert [problem.text for problem in task.problems] == ["one?", "two?"]
    assert load_task("letters", data_dir=str(data)).procedural  # which has no data
    assert load_task(f"gsm8k:data_dir={data}", data_dir=str(tmp_path)).problems == task.problems


@pytest.mark.parametrize("by_flag", [True, False])
def test_a_run_notes_where_its_data_lie(data: Path, monkeypatch: pytest.MonkeyPatch, by_flag: bool):
    monkeypatch.chdir(data.parent)
    monkeypatch.setenv(DATA_VARIABLE, "nowhere" if by_flag else "data")
    given = {"data_dir": "data"} if by_flag else {}
    ready = plan(RunConfig(**TINY, tasks="gsm8k", eval_tasks="gsm8k", **given))
    assert ready.config.tasks.data_dir == str(data.resolve())
    assert [problem.text for problem in ready.held_out] == ["three?", "four?"]
    monkeypatch.delenv(DATA_VARIABLE)
    monkeypatch.chdir("/")
    again = plan(RunConfig.of(ready.config.model_dump(mode="json")))  # as a resumed run reads it, from anywhere
    assert again.task == ready.task


def test_a_run_without_data_notes_no_folder(data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(DATA_VARIABLE, str(data))
    assert plan(RunConfig(**TINY, tasks="letters")).config.tasks.data_dir is None


WHOLE = "must be a whole number from"
# An option of a task, what is said of it, and values of which that is said, as they were given.
REFUSED = [
    ("arithmetic:digits", f"{WHOLE} 1 to 6", ("0", "7", "two", "²", "")),
    ("arithmetic:terms", f"{WHOLE} 2 to 6", ("1", "7")),
    ("arithmetic:ops", "must be one or more of +-*, each at most once", ("", "/", "++")),
    ("arithmetic:max", f"{WHOLE} 1 to 999999", ("0", "1000000")),
    ("arithmetic:last", f"{WHOLE} 1 to 999999", ("-1",)),
    ("arithmetic:seed", f"{WHOLE} 0 to 4294967296", ("x",)),
    ("equations:variables", f"{WHOLE} 1 to 2", ("3",)),
    ("equations:max", f"{WHOLE} 3 to 999", ("2",)),
    ("multiplication:digits", f"{WHOLE} 1 to 6", ("0",)),
    ("stories:max", f"{WHOLE} 3 to 1000000", ("2", "99999999")),
    ("stories:steps", f"{WHOLE} 1 to 2", ("3",)),
]
TAKEN = {
    "arithmetic": "digits, terms, ops, max, last, brief and seed",
    "equations": "variables and max", "letters": "named and of",
    "multiplication": "digits", "stories": "max and steps",
}  # fmt: skip
LETTERS = [("named", value, f"named={value}, of=12") for value in ("0", "13", "-1", "two", "", "1.5")]
LETTERS += [("of", value, f"named=10, of={value}") for value in ("27", "9")]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        *((f"{key}={v}", re.escape(f"{key} {said}, got '{v}'")) for key, said, values in REFUSED for v in values),
        *((f"letters:{key}={v}", f"1 <= named <= of <= 26, got {got}$") for key, v, got in LETTERS),
        (
            "arithmetic:max=3,terms=6,ops=-",
            r"no problem with 6 terms up to 3 \(.*, - and no negative intermediate",
        ),
        *((f"code-arithmetic:{key}", "code-arithmetic") for key in ("steps=3", "tests=0", "tests=x", "digits=2")),
        *((f"{name}:size=3", f"no option 'size'; it takes {takes}$") for name, takes in TAKEN.items()),
        ("letters:named=3,named=4", "the option 'named' of a task is given twice"),
        *((f"letters:{each}", f"KEY=VALUE, as in letters:named=10, got '{each}'") for each in ("named", "10")),
    ],
)
def test_options_that_are_refused(spec: str, message: str):
    with pytest.raises(TaskError, match=message):
        load_task(spec)


def test_the_first_problems_do_not_change():
    """A run must find the same problems under a later version."""
    arithmetic, letters = load_task("arithmetic"), load_task("letters", seed=0).problems
    assert [problem.text for problem in arithmetic.problems[:2]] == ["What is 13 - 3 - 4?", "What is 80 + 50 - 81?"]
    assert arithmetic.problems[1].extra == {"solution": "80 + 50 = 130. 130 - 81 = 49.", "content": "+50 +80 -81"}
    assert (arithmetic.name, arithmetic.procedural, len(arithmetic.problems)) == ("arithmetic", True, 100_000)
    assert [problem.answer for problem in letters[:3]] == ["abcfghijkl", "abcdefghik", "acdefghijl"]
    assert [problem.id for problem in letters[:3]] == ["letters-0", "letters-1", "letters-2"]
    product = load_task("multiplication", seed=0).problems[2]
    extra = {"solution": "236 * 800 = 188800.", "content": "236 * 800"}
    assert product == Problem("multiplication-2", "What is 236 * 800?", "188800", extra=extra)


@pytest.mark.parametrize(
    ("name", "text", "options", "answers"),
    [
        ("o.jsonl", '{"prompt": "1 + 1?", "solution": "2"}\n', ":problem=prompt,answer=solution", ["2"]),
        ("o.csv", 'question,answer,note\n"1, 2\nor 3?",2,\n2 + 1?,3,x\n', "", ["2", "3"]),
        ("o.CSV.csv", "Body,Q,N\nA hen.,How many?,1.0\n", ":problem=Body+Q,answer=N,kind=number", ["1"]),
    ],
)
def test_a_table_and_other_columns_are_read(tmp_path, monkeypatch, name, text, options, answers):
    (tmp_path / name).write_text(text, encoding="utf-8")
    task = load_task(f"{tmp_path / name}{options}")
    assert [problem.answer for problem in task.problems] == answers
    assert (task.name, task.origin) == (Path(name).stem, name)
    monkeypatch.chdir(tmp_path)
    # By its whole path, so that a resume from elsewhere finds it.
    train = plan(RunConfig(**TINY, tasks=f"{name}{options}")).config.tasks.train
    assert train == f"{tmp_path / name}{options}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("o.tsv", "Question\tAnswer\nOne, two?\t2\nThree; four?\t4\n"),
        ("o.csv", 'question;answer\nOne, two?;2\n"Three; four?";4\n'),
        ("o.csv", "question|answer\r\nOne, two?|2\r\nThree; four?|4\r\n"),
        ("o.csv", '"question";"answer"\n"One, two?";"2"\n"Three; four?";"4"\n'),
        ("o.json", '\n[{"question": "One, two?", "answer": 2},\n {"question": "Three; four?", "answer": "4"}]'),
        ("o.json", '{"question": "One, two?", "answer": 2}\n{"question": "Three; four?", "answer": "4"}'),
    ],
)
def test_tables_with_any_mark_and_lists_are_read(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text, encoding="utf-8")
    for spec in (str(tmp_path / name), f"{tmp_path / name}:kind=number"):
        task = load_task(spec)
        assert [(p.text, str(p.answer)) for p in task.problems] == [("One, two?", "2"), ("Three; four?", "4")]
        assert (task.name, task.origin) == ("o", name)
    assert not is_data(spec)


def test_parquet_and_saved_data_sets_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list([{"Question": f"{n} + 1?", "Answer": str(n + 1)} for n in range(3)])
    whole.to_parquet(tmp_path / "o.parquet")
    whole.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(train=whole, test=whole).save_to_disk(tmp_path / "both")
    monkeypatch.chdir(tmp_path)
    for spec in ("o.parquet", "saved", "both/train"):
        task = load_task(spec)
        assert [problem.answer for problem in task.problems] == ["1", "2", "3"]
        assert [problem.id for problem in task.problems] == [f"{Path(spec).stem}-{n}" for n in (1, 2, 3)]
        assert load_task(f"{spec}:problem=Answer,answer=Answer").problems[2].text == "3"
        for options in ("", ":answer=Answer"):
            assert plan(RunConfig(**TINY, tasks=spec + options)).config.tasks.train == f"{tmp_path}/{spec}{options}"
    with pytest.raises(TaskError, match=r"both has the splits train, test: give one, as in both/train$"):
        load_task("both")
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    for spec, said in (("bad.parquet", "cannot read bad.parquet: "), ("./saved/..", "it is a folder, not a file")):
        with pytest.raises(TaskError, match=said) as caught:
            load_task(spec)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"problem": "1?", "answer": 1}, 5]', r"o\.json, row 2: must be an object, not int"),
        ('[{"problem": "1?", "answer": "nan"}]', r"o\.json, row 1: the reference 'nan' is a mark"),
        ('[{"problem": "1?"},]', r"o\.json: not JSON"),
        ("[]", r"o\.json has no problem"),
    ],
)
def test_a_list_that_cannot_be_read(tmp_path: Path, text: str, said: str):
    (tmp_path / "o.json").write_text(text)
    with pytest.raises(TaskError, match=said):
        load_task(str(tmp_path / "o.json"))


def test_a_column_named_content_does_not_identify_a_problem(tmp_path: Path):
    rows = [{"problem": f"{n} + 1?", "answer": n + 1, "content": "chapter 1"} for n in range(6)]
    file = str(jsonl(tmp_path / "o.jsonl", *rows))
    for spec in (file, f"{file}:keep=content"):
        task = load_task(spec)
        assert len({content_key(problem) for problem in task.problems}) == 6
        assert task.problems[0].extra["content_"] == "chapter 1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Q,A\n1 + 1?,2\n", r"o\.csv, line 2: neither 'problem' .*\(Q, A\): map its .*FILE:problem=Q,answer=A"),
        ("question,answer\n1?,2,3\n", r"o\.csv, line 2: not as many cells"),
        ("question,answer\n1?\n", r"o\.csv, line 2: not as many cells"),
        ('question,answer\n"1"x,2\n', r"o\.csv, line 1: not CSV"),
        ("question,answer\n", r"o\.csv has no problem"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path, text, said):
    (tmp_path / "o.csv").write_text(text)
    with pytest.raises(TaskError, match=said):
        load_task(str(tmp_path / "o.csv"))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("142.0", "142"), ("1_080", "1080"), ("025", "25"), ("1,080", "1080"), ("-1,234,567.50", "-1234567.5"),
        ("１，０８０", "1080"), ("−5", "-5"), ("0.50", "0.5"), ("1,5", None), ("0,5", None), ("1,5000", None),
        ("1,00,000", None), ("0,500", None), ("1_0", None), ("1,234,5", None), ("12,", "12"), ("1,,000", None),
    ],
)  # fmt: skip
def test_the_loader_reads_numbers_as_the_checker_does(tmp_path, written, read):
    rows = [{"problem": "How many?", "answer": answer} for answer in ("2", written)]
    path = jsonl(tmp_path / "o.jsonl", *rows)
    if read is None:
        with pytest.raises(TaskError, match=rf"o\.jsonl, line 2: the digits of '{written}' are in groups"):
            load_task(f"{path}:kind=number")
    else:
        assert load_task(f"{path}:kind=number").problems[1].answer == read
    given = check(f"<answer>{written.replace('_', ',')}</answer>", read or re.sub(r"[,_]", "", written))
    assert given.correct is (read is not None)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("openai/gsm8k", r"no task file at openai/gsm8k: did you mean `gsm8k` or `hub:openai/gsm8k`\?$"),
        ("me/sums", r"did you mean `hub:me/sums`\?$"),
        ("nothere/o.csv:answer=x", "cannot read nothere/o.csv: No such file"),
    ],
)
def test_a_name_of_the_hub_is_recognised(spec, said):
    with pytest.raises(TaskError, match=said):
        load_task(spec)
