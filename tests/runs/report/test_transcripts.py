"""Transcripts of a run: who meets whom, which are chosen, how they read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.games import find_game
from lite_selfplay.games.presentation import NOT_JUDGED, RIGHT, WRONG
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.propose_solve.propose_solve import AGREES, DIFFERS, NO_QUESTION, UNANSWERED
from lite_selfplay.runs.report.pages import RULES, choose_transcripts, outcome, transcripts_markdown

AGON, SQLM, GRPO = map(find_game, ("agon", "sqlm", "grpo"))
CONVERSION, REGRESSION, BOTH_RIGHT, BOTH_WRONG = AGON.pairing.kinds.values()


def row(role, correct, *, step=1, group=0, sample=0, text="text", **info):
    place = {"step": step, "role": role, "seat": "A" if role == "drafter" else "B", "group": group, "sample": sample}
    asked = {"problem_id": f"p{step}-{group}", "prompt": "1 + 1?" + "\n\nan attempt" * (role == "challenger")}
    judged = {"reward": 2.0 * bool(correct), "correct": correct, "reason": "" if correct else "wrong"}
    return {**place, **asked, **judged, "text": text, **info}


def step_rows(*pairs, step=1):
    """Rows as `episode_rows` orders them: all drafts, then all challenges."""
    drafts = [row("drafter", before, step=step, sample=i) for i, (before, _) in enumerate(pairs)]
    return drafts + [row("challenger", after, step=step, sample=i, draft=i) for i, (_, after) in enumerate(pairs)]


W, R = False, True


def kinds_of(transcripts):
    return [transcript.kind for transcript in transcripts]


def test_a_challenge_meets_the_draft_it_names_and_others_stand_alone():
    rows = step_rows((W, R), (R, W), (R, R), (W, W))
    assert kinds_of(AGON.transcripts(rows)) == [CONVERSION, REGRESSION, BOTH_RIGHT, BOTH_WRONG]
    shared = [row("drafter", W), *(row("challenger", R, sample=i, draft=0) for i in range(2))]
    met = [(draft["role"], challenge["sample"]) for draft, challenge in (x.rows for x in AGON.transcripts(shared))]
    assert met == [("drafter", 0), ("drafter", 1)]
    alone = [row("solver", W), row("solver", R, sample=1)]
    assert kinds_of(AGON.transcripts(alone)) == kinds_of(GRPO.transcripts(alone)) == [WRONG, RIGHT]


PLAYED = [(R, R), (W, R)], [(W, W), (W, R)], [(R, W)], [(W, W), (R, R)]
RUN = [line for step, pairs in enumerate(PLAYED, 1) for line in step_rows(*pairs, step=step)]


def steps_and_kinds(chosen):
    return [(transcript.step, transcript.kind) for transcript in chosen]


def test_transcripts_are_chosen_by_rule():
    latest = [(2, CONVERSION), (3, REGRESSION), (4, BOTH_RIGHT), (4, BOTH_WRONG), (1, CONVERSION)]
    assert steps_and_kinds(choose_transcripts(AGON, RUN, 5, "kinds")) == latest
    assert steps_and_kinds(choose_transcripts(AGON, RUN, 2, "first")) == [(1, BOTH_RIGHT), (1, CONVERSION)]
    for count, spread in ((0, []), (1, [4]), (2, [1, 4]), (3, [1, 3, 4]), (9, [1, 2, 3, 4])):
        assert [step for step, _ in steps_and_kinds(choose_transcripts(AGON, RUN, count, "spread"))] == spread
    for rule in RULES:  # none minds an empty run, or invents transcripts
        assert choose_transcripts(AGON, [], 3, rule) == []
        assert len(choose_transcripts(AGON, RUN, 99, rule)) <= len(AGON.transcripts(RUN))


def test_the_problem_is_shown_without_the_instruction():
    prompts = {fill("solver", problem="What is 2 + 2?"): "What is 2 + 2?", "an own prompt": "an own prompt"}
    for prompt, problem in prompts.items():
        (found,) = GRPO.transcripts([{**row("solver", R), "prompt": prompt}])
        assert found.problem == problem


def test_a_page_of_transcripts_states_its_rule_and_shows_what_was_seen():
    page = transcripts_markdown(AGON, "agon", choose_transcripts(AGON, RUN, 1, "kinds"), "kinds")
    head, body = page.split("\n\n## 1. ")
    assert RULES["kinds"] in head
    assert body.startswith(f"Step 2, p2-0: {CONVERSION}\n")
    assert "The challenger saw the same, and then:\n\n```text\nan attempt\n```" in body
    assert "drafter, seat `A`: wrong, reward 0" in body
    assert "challenger, seat `B`: right, reward 2" in body


def proposal(question, correct=None, *, step=1, sample=0, text="2 + 2?", **info):
    asked = {**row("proposer", correct, step=step, sample=sample, text=text), "prompt": "Write a question."}
    return {**asked, "problem_id": None, "reason": None, "question": question, **info}


def answer(question, correct, *, step=1, sample=0, **info):
    asked = {**row("solver", correct, step=step, sample=sample), "prompt": fill("solver", problem=f"{question}?")}
    return {**asked, "problem_id": question, "question": question, **info}


def test_a_question_meets_the_first_answer_of_each_outcome():
    rows = [
        *(proposal(f"q-0-{i}", sample=i) for i in range(3)),
        proposal(None, sample=3, reason="off_format"),
        *(answer("q-0-0", correct, sample=i) for i, correct in enumerate((W, R, R, W))),
        *(answer("q-0-1", W, sample=i) for i in range(2)),
    ]
    met = [(UNANSWERED, [2]), (NO_QUESTION, [3]), (DIFFERS, [0, 0]), (AGREES, [0, 1]), (DIFFERS, [1, 0])]
    assert [(found.kind, [r["sample"] for r in found.rows]) for found in SQLM.transcripts(rows)] == met
    (turned,) = SQLM.transcripts([answer("q-0-0", R), proposal("q-0-0")])  # the order of the streams does not matter
    assert [r["role"] for r in turned.rows] == ["proposer", "solver"]


def test_a_question_may_be_answered_at_a_later_step_and_paid_for_at_another():
    first, paid = proposal("q-0-0", fate="kept"), proposal("q-0-0", step=2, reward=3.0)
    rows = [first, paid, answer("q-0-0", R, step=5)]
    (found,) = SQLM.transcripts(rows)
    assert found.rows[0] is first
    assert (found.subject, found.step) == ("q-0-0", 5)
    assert choose_transcripts(SQLM, rows, 1, "spread") == [found]


UNNAMED = {key: value for key, value in proposal(None, W, reason="off_format").items() if key != "question"}


@pytest.mark.parametrize(
    ("game", "made", "words"),
    [
        (GRPO, row("solver", R), "right"),
        (GRPO, row("solver", W), "wrong"),
        (GRPO, {**row("solver", W), "reason": "no answer"}, "wrong (no answer)"),
        (GRPO, row("solver", None), "not judged"),
        (GRPO, {**UNNAMED, "reason": "wrong"}, "wrong"),  # the game says what is judged: here a proposer may answer
        (SQLM, UNNAMED, "no question (off format)"),
        (SQLM, proposal("q", R, reason=""), "accepted"),
        (SQLM, proposal("q", None, fate="kept"), "accepted"),
        (SQLM, proposal("q", W, reason="all_agree"), "not accepted (all agree)"),
        (SQLM, proposal("q", None, fate="too_hard"), "not accepted (too hard)"),
        (SQLM, proposal("q", W, reason="leaks"), "no question (leaks)"),
        (SQLM, proposal("q", None, fate="prompt_too_long"), "no question (prompt too long)"),
        (SQLM, proposal("q", None), "not judged"),
        (SQLM, answer("q", R), "agrees with the label"),
        (SQLM, answer("q", W), "does not agree with the label"),
        (SQLM, answer("q", W, reason="no_majority"), "does not agree with the label (no majority)"),
        (SQLM, answer("q", None), "not judged"),
    ],
)
def test_verdicts(game, made, words):
    assert game.verdict(made) == words
    proposed = game is SQLM and made["role"] == "proposer"
    assert outcome(game, made) is (None if proposed else made["correct"])
    if words == "not judged" and not proposed:
        assert kinds_of(game.transcripts([made])) == [NOT_JUDGED]


def test_a_page_of_questions_and_answers():
    rows = [proposal("q-0-0", sample=0, reason="all_agree", correct=W), answer("q-0-0", R)]
    page = transcripts_markdown(SQLM, "sqlm", SQLM.transcripts(rows), "kinds")
    assert f"## 1. Step 1, q-0-0: {AGREES}\n\nThe problem:\n\n```text\nq-0-0?\n```" in page
    assert "What proposer was asked:\n\n```text\nWrite a question.\n```" in page
    assert "proposer, seat `B`: not accepted (all agree), reward 0\n\n```text\n2 + 2?\n```" in page
    assert "solver, seat `B`: agrees with the label, reward 2" in page
    assert not [word for word in ("challenger", "wrong") if word in page.partition("## 1.")[2]]
    alone = transcripts_markdown(SQLM, "sqlm", SQLM.transcripts([proposal(None, reason="empty", text="")]), "first")
    assert f"a problem: {NO_QUESTION}" in alone
    assert "The problem:\n\n```text\nWrite a question.\n```" in alone


def test_what_else_a_challenger_may_have_seen():
    draft, challenge = step_rows((W, R))
    same, other = "the same, but not the drafter's text.", "saw:\n\n```text\nSomething else\n```"
    for prompt, seen in ((draft["prompt"], same), ("Something else", other)):
        found = AGON.transcripts([draft, {**challenge, "prompt": prompt}])
        assert seen in transcripts_markdown(AGON, "agon", found, "first")


@given(st.text(st.one_of(st.characters(), st.sampled_from("`~\n #\x1b[m"))))
def test_a_completion_never_leaves_its_block(text):
    page = transcripts_markdown(GRPO, "t", GRPO.transcripts([row("solver", R, text=text)]), "first")
    fence, shown = re.findall(r"^(`{3,})text\n(.*?)\n\1$", page, re.DOTALL | re.MULTILINE)[-1]
    assert fence not in shown
    assert page.endswith(f"{fence}text\n{shown}\n{fence}\n")
    assert "\x1b" not in page
