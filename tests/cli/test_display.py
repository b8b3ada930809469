"""The live display: what it shows at which size, and that no completion can drive the terminal."""

import io
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from lite_selfplay.games import find_game
from lite_selfplay.runs.report.transcripts import shown_transcript
from lite_selfplay.training.progress import PlainProgress
from lite_selfplay_cli.display import Display, Screen, View, make_progress


class Terminal(io.StringIO):
    """What a terminal is sent."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def console(width=100, height=40, **options) -> Console:
    options = {"force_terminal": True, "file": Terminal(), "color_system": None, "_environ": {}, **options}
    return Console(width=width, height=height, **options)


def metrics(step=0, conversions=2, regressions=1, **values):
    def stream(seat, accuracy):
        return {
            "seat": seat,
            "accuracy": accuracy,
            "well_formed": 0.875,
            "reward_mean": 1.25,
            "tokens_mean": 29.4,
            **values,
        }

    return {
        "step": step,
        "wall_s": {"total": 4.0, "generate": 2.0},
        "tokens": {"generated": 932},
        "streams": {"drafter": stream("A", 0.25 + 0.5 * (step % 2)), "challenger": stream("B", 0.5)},
        "game": {"pairs": 16, "conversions": conversions, "regressions": regressions},
    }


def completion(role, correct, text, **values):
    return {
        "step": 0,
        "role": role,
        "seat": "A" if role == "drafter" else "B",
        "problem_id": "stories-1",
        "prompt": "How many stamps are there?",
        "text": text,
        "reward": 2.5,
        "correct": correct,
        "reason": "wrong",
        "group": 0,
        "sample": 0,
        **({"draft": 0} if role == "challenger" else {}),
        **values,
    }


DUEL = (completion("drafter", False, "8 + 2 = 11."), completion("challenger", True, "8 + 2 = 10."))


AGON, GRPO, SQLM, CPMOBIUS = map(find_game, ("agon", "grpo", "sqlm", "cpmobius"))


class Shown:
    """A display whose clock is set by hand, and its live region as text."""

    def __init__(self, width=100, height=40, game=AGON, **options):
        self.console = console(width, height, **options)
        self.now = 0.0
        self.display = Display(self.console, lambda: self.now)
        self.game = game
        self.display.begin(game)

    def step(self, metrics, rows, line) -> None:
        self.display.step(metrics, shown_transcript(self.game, rows), line)

    def lines(self) -> list[str]:
        size = self.console.size
        other = console(size.width, size.height, file=io.StringIO(), color_system=None)
        with other.capture() as capture:
            other.print(Screen(self.display._view, self.now))
        return capture.get().splitlines()

    def text(self) -> str:
        return "\n".join(self.lines())


def in_training(rows=DUEL, width=100, height=40, steps=2, figures=None, **options) -> Shown:
    shown = Shown(width, height, **options)
    shown.display.evaluated("untouched", {"pass_at_1": 0.12}, "base 12%")
    shown.display.phase("training", 20)
    for step in range(steps):
        shown.now += 4
        shown.step(metrics(step, **(figures or {})), rows, f"step {step + 1}/20")
    shown.display.activity("A speaks as drafter")
    shown.now += 41
    return shown


# What is shown


def test_nothing_is_shown_before_the_first_phase():
    assert Shown().text().strip() == ""


def test_a_phase_of_unknown_length_goes_on():
    shown = Shown()
    shown.display.phase("loading tiny")
    shown.now = 75
    assert "loading tiny  1:15" in shown.text()


def test_a_phase_tells_how_far_it_is_and_how_long_it_will_take():
    shown = Shown()
    shown.display.phase("cold start of A", 20)
    shown.now = 1
    assert "left" not in shown.text()
    shown.now = 10
    shown.display.tick()
    shown.display.advance(5, "loss 0.51")
    assert re.search(r"cold start of A 5/20 .*0:10 gone, 0:30 left", shown.text())
    assert "loss 0.51" in shown.text()
    shown.now = 20
    assert "0:20 gone, 0:20 left" in shown.text()


def test_how_far_the_tokens_are():
    shown = Shown()
    shown.display.phase("evaluation", 100)
    shown.display.activity("A answers problems 1 to 64")
    shown.now = 41
    shown.display.tokens(214, 1024)
    assert "A answers problems 1 to 64, 0:41, up to 214 of 1,024 tokens" in shown.text()
    assert "left" not in shown.text()  # how many tokens will be said cannot be known
    shown.display.activity("answers are checked")
    assert re.search(r"answers are checked, 0:00\s*$", shown.text(), re.MULTILINE)


def test_training_at_a_glance():
    text = in_training().text()
    assert re.search(r"training 2/20 .*0:49 gone, 0:31 left", text)  # 18 steps of 4 s, 41 s after the second
    assert "A speaks as drafter, 0:41" in text
    assert "best pass@1: untouched 12.0%" in text
    assert re.search(r"role +seat +right +last 10 +reward +well-formed +tokens", text)
    assert re.search(r"drafter +A +75% +50% +1.25 +88% +29", text)  # 25% and 75%
    assert "conversions 2, regressions 1; since step 1: conversions 4, regressions 2" in text
    assert "932 tokens at 466/s" in text
    assert "step 1, stories-1: the challenge was right, the draft wrong" in text
    assert "How many stamps are there?" in text
    assert re.search(r"drafter A: ✗ wrong, reward 2.5 .* challenger B: ✓ right, reward 2.5", text)
    assert re.search(r"8 \+ 2 = 11\. .* 8 \+ 2 = 10\.", text)


def test_a_running_mean_forgets():
    shown = in_training(steps=15)
    assert len(shown.display._view.accuracies["drafter"]) == 10
    assert re.search(r"drafter +A +25% +50%", shown.text())


def test_a_resumed_run_counts_from_where_it_went_on():
    shown = Shown()
    shown.display.phase("training", 20)
    shown.display.advance(8)
    shown.now = 1.5
    assert "left" not in shown.text()
    shown.step(metrics(8), DUEL, "step 9/20")
    assert "9/20" in shown.text()
    assert "0:44 left" in shown.text()
    assert "since step 9: conversions 2, regressions 1" in shown.text()


def test_what_an_evaluation_goes_on_with_says_nothing_of_what_is_left():
    shown = Shown()
    shown.display.phase("evaluation", 720)
    shown.now = 6
    shown.display.advance(600)  # answered before, and read back on a busy machine
    assert "left" not in shown.text()
    shown.now = 46
    shown.display.tick()
    shown.display.advance(640)
    assert re.search(r"evaluation 640/720 .*0:46 gone, 1:20 left", shown.text())  # 40 in 40 s, not 640 in 46 s


def test_an_evaluation_in_between_leaves_the_speed_of_training_alone():
    shown = in_training()
    shown.display.phase("evaluation after 2 steps", 100)
    assert "left" not in shown.text()
    shown.display.phase("training", 20)
    shown.display.advance(2)
    assert "1:12 left" in shown.text()


def test_a_game_without_a_rival():
    step = metrics()
    step["game"] = {}
    step["streams"] = {"solver": step["streams"]["challenger"]}
    shown = Shown(game=GRPO)
    shown.display.phase("training", 2)
    shown.step(step, [completion("solver", True, "10")], "step 1/2")
    text = shown.text()
    assert "solver B: ✓ right" in text
    assert "conversions" not in text


def test_what_was_not_judged():
    step = metrics(accuracy=None, well_formed=None, reward_mean=None, tokens_mean=None)
    shown = Shown()
    shown.display.phase("training", 2)
    shown.step(step, [completion("solver", None, "")], "step 1/2")
    text = shown.text()
    assert re.search(r"drafter +A +- +- +- +- +-", text)
    assert "not judged" in text
    assert "(nothing)" in text


def test_what_is_there_for_the_record_alone():
    step = metrics()
    step["streams"] = {"coach": {**step["streams"]["challenger"], "accuracy": None, "reward_mean": None}}
    shown = Shown(width=120, game=CPMOBIUS)
    shown.display.phase("training", 2)
    task = completion("coach", None, "What is 2 + 2?", question="q-0-0", problem_id=None, fate="kept", reward=None)
    shown.step(step, [task], "step 1/2")
    assert re.search(r"coach +B +- +- +- +88%", shown.text())
    assert "coach B: accepted " in shown.text()
    assert "reward 2" not in shown.text()


def test_a_question_and_an_answer_to_it():
    step = metrics()
    step["game"] = {"proposals": 4, "usable": 1, "refused": {"off_format": 3}, "pass_rates": [0, 0, 1, 0, 0]}
    step["streams"] = {"proposer": step["streams"]["challenger"], "solver": step["streams"]["challenger"]}
    asked = completion("proposer", False, "What is 2 + 2?", question="q-0-1", problem_id=None, reason="all_agree")
    answered = completion("solver", False, "5", question="q-0-1", problem_id="q-0-1", prompt="What is 2 + 2?")
    shown = Shown(width=120, game=SQLM)
    shown.display.phase("training", 2)
    shown.step(step, [asked, answered], "step 1/2")
    text = shown.text()
    assert "step 1, q-0-1: the answer does not agree with the label" in text
    assert "proposer B: not accepted (all agree), reward 2.5" in text
    assert "solver B: ✗ does not agree with the label, reward 2.5" in text
    assert "1 of 4 questions usable, most refused: off format 3" in text
    assert re.search(r"role +seat +accepted", text)
    assert "wrong" not in text
    assert "right" not in text


def test_whose_weights_sampled_is_a_line_a_seat():
    shown = Shown()
    shown.display.phase("training", 2)
    shown.step(metrics(sampler_gap=0.0042, base_gap=0.312), DUEL, "step 1/2")
    for seat in "AB":
        assert f"{seat}: sampler = trainer (0.0042 nats), differs from base (0.31)\n" in shown.text()


def test_long_texts_keep_their_beginning_and_their_end():
    long = "\n".join(f"line {i}" for i in range(500))
    text = in_training([completion("drafter", True, long), completion("challenger", True, long)]).text()
    assert "line 0" in text
    assert "[…]" in text
    assert "line 499" in text
    assert "line 250" not in text


# At every size


@pytest.mark.parametrize("width", [20, 40, 60, 61, 83, 84, 100, 200])
@pytest.mark.parametrize("height", [4, 10, 16, 24, 60])
def test_the_region_fits(width, height):
    texts = ["word " * 300, "漢字" * 300]
    duel = [completion("drafter", False, texts[0]), completion("challenger", True, texts[1])]
    shown = in_training(duel, width, height, figures={"sampler_gap": 0.0042, "base_gap": 0.312})
    lines = shown.lines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= max(height - 1, 4)


def test_a_narrow_terminal_stacks_the_duel():
    lines = in_training(width=60).lines()
    titles = [i for i, line in enumerate(lines) if "reward 2.5" in line]
    assert len(titles) == 2
    assert any(re.search(r"role +seat +right +last 10 +reward +format +tokens", line) for line in lines)


def test_a_terminal_may_change_its_size():
    shown = in_training()
    with shown.display:
        for width, height in ((100, 40), (60, 12), (30, 5), (120, 50)):
            shown.console.size = (width, height)
            shown.display._live.refresh()
            assert max(map(cell_len, shown.lines())) <= width


# What a model says


def test_markup_is_shown_as_it_stands():
    text = in_training([completion("solver", True, "[bold]x[/bold] [link=http://x]y[/link] :smile: [/]")]).text()
    assert "[bold]x[/bold] [link=http://x]y[/link] :smile: [/]" in text


def test_escapes_in_a_completion_do_not_reach_the_terminal():
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\x07back\x08\rhome"
    shown = in_training([completion("solver", False, evil, reason=evil, problem_id=evil, prompt=evil)])
    assert "\x1b" not in shown.text()
    shown.display.say(f"[red]said {evil}")
    written = shown.console.file.getvalue()
    assert "[red]said " in written
    assert "\x1b" not in written


TEXTS = st.text(st.one_of(st.characters(), st.sampled_from("\x1b[]\\\x9b\x07\r\n\t漢👩‍👧é/=bold")), max_size=200)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.sampled_from([30, 60, 100]))
def test_no_text_breaks_the_region(draft, challenge, width):
    shown = in_training(
        [completion("drafter", True, draft), completion("challenger", False, challenge, prompt=draft)], width
    )
    lines = shown.lines()
    assert not set("\x1b\x9b\r\x07\x08") & set("".join(lines))
    assert sum("✓ right" in line or "✗ wrong" in line for line in lines) >= 1
    borders = [line for line in lines if line.startswith(("╭", "╰"))]
    assert len(borders) == (2 if width == 100 else 4)


# The terminal before and after


def test_lines_scroll_above_a_region_that_goes_away():
    shown = in_training(color_system="standard")
    before = (sys.stdout, sys.stderr)
    with shown.display as display:
        display._live.refresh()
        display.warn("slow")
        display.finished(["up 3 points", "lite-selfplay report " + "x" * 120])
    assert (sys.stdout, sys.stderr) == before
    written = shown.console.file.getvalue()
    assert "warning: slow" in written
    assert "lite-selfplay report " + "x" * 120 + "\n" in written  # whole, so that it can be copied
    assert "training" not in written[written.rindex("up 3 points") :]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_terminal_as_it_was(error):
    terminal = console(color_system="standard")
    before = (sys.stdout, sys.stderr)

    def run() -> None:
        with make_progress(terminal) as progress:
            assert isinstance(progress, Display)
            progress.phase("training", 3)
            raise error

    with pytest.raises(error):
        run()
    assert (sys.stdout, sys.stderr) == before
    written = terminal.file.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


def test_the_cursor_stays_in_case_the_process_is_ended():
    terminal = console(color_system="standard")
    with make_progress(terminal):
        written = terminal.file.getvalue()
        assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


def test_a_display_refreshes_while_it_is_told():
    shown = Shown()
    shown.display = Display(shown.console)
    shown.display._live.refresh_per_second = 200
    with shown.display as display:
        display.phase("training", 50)
        for step in range(50):
            shown.step(metrics(step), DUEL, f"step {step + 1}")
            display.activity(f"activity {step}")
            display.advance(step + 1)
    assert "step 50" in shown.console.file.getvalue()


def test_no_color_leaves_signs_and_words(monkeypatch):
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        other = console(_environ={"TERM": "xterm-256color", **environment}, color_system="auto")
        with other.capture() as capture:
            other.print(Screen(in_training().display._view, 0.0))
        assert ("\x1b[32m" in capture.get()) is coloured
        assert "✓ right" in capture.get()


def plain_file():
    return Console(file=io.StringIO(), _environ={})


@pytest.mark.parametrize(
    "make",
    [
        plain_file,
        lambda: Console(file=io.StringIO(), force_terminal=True, _environ={}),  # FORCE_COLOR into a pipe
        lambda: Console(file=Terminal(), _environ={"TERM": "dumb"}),
    ],
    ids=["file", "forced", "dumb"],
)
def test_elsewhere_there_are_lines(make, capsys):
    with make_progress(make()) as progress:
        assert isinstance(progress, PlainProgress)
        progress.say("loading")
        progress.warn("slow")
    assert capsys.readouterr() == ("loading\n", "warning: slow\n")


def test_a_terminal_without_unicode_gets_lines(capsys):
    terminal = Terminal()
    terminal.encoding = "ascii"
    with make_progress(console(file=terminal)) as progress:
        assert isinstance(progress, PlainProgress)


def test_an_estimate_that_has_run_out_is_none():
    view = View(phase="training", total=4, done=2, stepping="training", step_seconds=(1.0,), advanced_at=0.0)
    assert view.seconds_left(1.5) == 0.5
    assert view.seconds_left(100.0) is None
