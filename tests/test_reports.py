"""A step as text, which exchanges are shown, the words a run closes with, and its model card."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.config import RunConfig
from lite_selfplay.games import find_game, game_names, make_game
from lite_selfplay.games.propose_solve import ProposeSolve
from lite_selfplay.reports import (
    AGREES,
    BOTH_RIGHT,
    BOTH_WRONG,
    CONVERSION,
    DIFFERS,
    NO_QUESTION,
    NOT_JUDGED,
    REGRESSION,
    RIGHT,
    RULES,
    UNANSWERED,
    WRONG,
    choose_exchanges,
    episode_rows,
    exchanges,
    exchanges_markdown,
    flat,
    harvest,
    is_proposal,
    kind_of,
    outcome,
    problem_text,
    progress_line,
    shown_exchange,
    subject,
    verdict,
)
from lite_selfplay.summaries import accuracy_word, closing_summary, code, model_card, plain
from lite_selfplay.testing import ScriptedTable, noisy_script


def row(role, correct, *, step=0, group=0, sample=0, text="said", **info):
    return {
        "step": step,
        "role": role,
        "seat": "A" if role == "drafter" else "B",
        "problem_id": f"p{step}-{group}",
        "group": group,
        "sample": sample,
        "prompt": "1 + 1?" if role != "challenger" else "1 + 1?\n\nan attempt",
        "text": text,
        "reward": 2.0 * bool(correct),
        "correct": correct,
        "reason": "" if correct else "wrong",
        **info,
    }


def step_rows(*pairs, step=0):
    """Rows as `episode_rows` orders them: all drafts, then all challenges."""
    drafts = [row("drafter", before, step=step, sample=i) for i, (before, _) in enumerate(pairs)]
    return drafts + [row("challenger", after, step=step, sample=i, draft=i) for i, (_, after) in enumerate(pairs)]


W, R = False, True


# Exchanges


def test_a_challenge_meets_the_draft_it_names():
    rows = step_rows((W, R), (R, W), (R, R), (W, W))
    assert [kind_of(exchange) for exchange in exchanges(rows)] == [CONVERSION, REGRESSION, BOTH_RIGHT, BOTH_WRONG]


def test_challenges_may_share_a_draft():
    rows = [row("drafter", W), *(row("challenger", R, sample=i, draft=0) for i in range(2))]
    assert [(a["role"], b["sample"]) for a, b in exchanges(rows)] == [("drafter", 0), ("drafter", 1)]


def test_completions_without_a_rival_stand_alone():
    rows = [row("solver", W), row("solver", R, sample=1)]
    assert [kind_of(exchange) for exchange in exchanges(rows)] == [WRONG, RIGHT]


@pytest.mark.parametrize(
    ("pairs", "place"),
    [
        ([(R, R), (W, R), (R, W), (W, R)], 1),
        ([(W, W), (R, R), (R, W)], 2),
        ([(W, W), (R, R), (R, R)], 1),
        ([(W, W), (W, W)], 0),
    ],
)
def test_the_exchange_that_is_shown(pairs, place):
    draft, challenge = shown_exchange(step_rows(*pairs))
    assert (draft["sample"], challenge["sample"]) == (place, place)
    assert (draft["role"], challenge["role"]) == ("drafter", "challenger")


def test_what_is_shown_without_a_rival_and_without_anything():
    rows = [row("solver", correct, sample=i) for i, correct in enumerate((W, R, R))]
    assert shown_exchange(rows) == [rows[1]]
    assert shown_exchange(rows[:1]) == [rows[0]]
    assert shown_exchange([]) == []


RUN = [
    *step_rows((R, R), (W, R), step=0),
    *step_rows((W, W), (W, R), step=1),
    *step_rows((R, W), step=2),
    *step_rows((W, W), (R, R), step=3),
]


def steps_and_kinds(chosen):
    return [(exchange[0]["step"], kind_of(exchange)) for exchange in chosen]


def test_the_latest_of_each_kind_in_turn():
    assert steps_and_kinds(choose_exchanges(RUN, 5, "kinds")) == [
        (1, CONVERSION),
        (2, REGRESSION),
        (3, BOTH_RIGHT),
        (3, BOTH_WRONG),
        (0, CONVERSION),
    ]


def test_the_first_of_the_run():
    assert steps_and_kinds(choose_exchanges(RUN, 2, "first")) == [(0, BOTH_RIGHT), (0, CONVERSION)]


@pytest.mark.parametrize(("count", "chosen"), [(0, []), (1, [3]), (2, [0, 3]), (3, [0, 2, 3]), (9, [0, 1, 2, 3])])
def test_evenly_spread(count, chosen):
    assert [exchange[0]["step"] for exchange in choose_exchanges(RUN, count, "spread")] == chosen


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_minds_an_empty_run_or_invents_exchanges(rule):
    assert choose_exchanges([], 3, rule) == []
    assert len(choose_exchanges(RUN, 99, rule)) <= len(exchanges(RUN))


def test_verdicts():
    assert verdict(row("solver", R)) == "right"
    assert verdict(row("solver", W)) == "wrong"
    assert verdict({**row("solver", W), "reason": "no answer"}) == "wrong (no answer)"
    assert verdict(row("solver", None)) == "not judged"


def test_the_problem_is_shown_without_the_instruction():
    from lite_selfplay.games.prompts import fill

    assert problem_text([{"prompt": fill("solver", problem="What is 2 + 2?")}]) == "What is 2 + 2?"
    assert problem_text([{"prompt": "a game's own prompt"}]) == "a game's own prompt"


def test_a_page_of_exchanges_states_its_rule_and_shows_what_was_seen():
    page = exchanges_markdown("agon", choose_exchanges(RUN, 1, "kinds"), "kinds")
    head, body = page.split("\n\n## 1. ")
    assert RULES["kinds"] in head
    assert body.startswith(f"Step 2, p1-0: {CONVERSION}\n")
    assert "The challenger saw the same, and then:\n\n```text\nan attempt\n```" in body
    assert "drafter, seat `A`: wrong, reward 0" in body
    assert "challenger, seat `B`: right, reward 2" in body


# Proposed questions and answers to them


def proposal(question, correct=None, *, step=0, sample=0, text="2 + 2?", **info):
    asked = {**row("proposer", correct, step=step, sample=sample, text=text), "prompt": "Write a question."}
    return {**asked, "problem_id": None, "reason": None, "question": question, **info}


def answer(question, correct, *, step=0, sample=0, **info):
    from lite_selfplay.games.prompts import fill

    asked = {**row("solver", correct, step=step, sample=sample), "prompt": fill("solver", problem=f"{question}?")}
    return {**asked, "problem_id": question, "question": question, **info}


def told(found):
    return [(kind_of(exchange), [r["sample"] for r in exchange]) for exchange in found]


def test_a_question_meets_the_first_answer_of_each_outcome():
    rows = [
        proposal("q-0-0", sample=0),
        proposal("q-0-1", sample=1),
        proposal("q-0-2", sample=2),
        proposal(None, sample=3, reason="off_format"),
        *(answer("q-0-0", correct, sample=i) for i, correct in enumerate((W, R, R, W))),
        *(answer("q-0-1", W, sample=i) for i in range(2)),
    ]
    assert told(exchanges(rows)) == [
        (UNANSWERED, [2]),
        (NO_QUESTION, [3]),
        (DIFFERS, [0, 0]),
        (AGREES, [0, 1]),
        (DIFFERS, [1, 0]),
    ]
    assert told([shown_exchange(rows)]) == [(AGREES, [0, 1])]
    assert told([shown_exchange(rows[:4])]) == [(UNANSWERED, [2 - 2])]
    assert told([shown_exchange(rows[3:4])]) == [(NO_QUESTION, [3])]


def test_the_order_of_the_streams_does_not_matter():
    rows = [answer("q-0-0", R), proposal("q-0-0")]
    assert [[r["role"] for r in exchange] for exchange in exchanges(rows)] == [["proposer", "solver"]]


def test_a_question_may_be_answered_at_a_later_step_and_paid_for_at_another():
    first, paid = proposal("q-0-0", fate="kept"), proposal("q-0-0", step=1, reward=3.0)
    rows = [first, paid, answer("q-0-0", R, step=4)]
    ((asked, answered),) = exchanges(rows)
    assert asked is first
    assert (subject([asked, answered]), answered["step"]) == ("q-0-0", 4)
    assert choose_exchanges(rows, 1, "spread") == [[first, answered]]
    assert told([shown_exchange([paid])]) == [(UNANSWERED, [0])]  # by itself, as a display sees that step
    assert told([shown_exchange(rows[2:])]) == [(AGREES, [0])]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (proposal("q", R, reason=""), "accepted"),
        (proposal("q", None, fate="kept"), "accepted"),
        (proposal("q", W, reason="all_agree"), "not accepted (all agree)"),
        (proposal("q", None, fate="too_hard"), "not accepted (too hard)"),
        (proposal("q", W, reason="leaks"), "no question (leaks)"),
        (proposal("q", None, fate="prompt_too_long"), "no question (prompt too long)"),
        (proposal("q", None), "not judged"),
    ],
)
def test_nobody_calls_a_proposal_wrong(made, words):
    assert is_proposal(made)
    assert verdict(made) == words
    assert outcome(made) is None


def test_a_refused_proposal_without_a_name_is_one_all_the_same():
    made = proposal(None, W, reason="off_format")
    del made["question"]
    assert is_proposal(made)
    assert verdict(made) == "no question (off format)"
    # A game of one's own may judge completions that answer no problem.
    assert not is_proposal({**made, "reason": "wrong"})
    assert verdict({**made, "reason": "wrong"}) == "wrong"
    assert not is_proposal({**made, "reason": "no_answer"})


def test_answers_agree_with_a_label_or_do_not():
    assert verdict(answer("q", R)) == "agrees with the label"
    assert verdict(answer("q", W)) == "does not agree with the label"
    assert verdict(answer("q", W, reason="no_majority")) == "does not agree with the label (no majority)"
    assert verdict(answer("q", None)) == "not judged"
    assert outcome(answer("q", R)) is True
    assert kind_of([answer("q", None)]) == kind_of([row("solver", None)]) == NOT_JUDGED


def test_a_page_of_questions_and_answers():
    rows = [proposal("q-0-0", sample=0, reason="all_agree", correct=W), answer("q-0-0", R)]
    page = exchanges_markdown("sqlm", exchanges(rows), "kinds")
    assert f"## 1. Step 1, q-0-0: {AGREES}\n\nThe problem:\n\n```text\nq-0-0?\n```" in page
    assert "What proposer was asked:\n\n```text\nWrite a question.\n```" in page
    assert "proposer, seat `B`: not accepted (all agree), reward 0\n\n```text\n2 + 2?\n```" in page
    assert "solver, seat `B`: agrees with the label, reward 2" in page
    assert "challenger" not in page.partition("## 1.")[2]
    assert "wrong" not in page.partition("## 1.")[2]
    alone = exchanges_markdown("sqlm", [[proposal(None, reason="empty", text="")]], "first")
    assert f"a problem: {NO_QUESTION}" in alone
    assert "The problem:\n\n```text\nWrite a question.\n```" in alone


FAMILY = [name for name in game_names() if issubclass(find_game(name), ProposeSolve)]
SHORT = {"rzero": {"challenger_steps": 1, "solver_steps": 1}}


@pytest.mark.parametrize("name", FAMILY)
def test_the_rows_of_the_librarys_own_games_are_understood(name):
    """What the games write down is what is read here: no proposal is called wrong."""
    game = make_game(name, SHORT.get(name, {}), group_size=3, problems_per_step=4)
    table = ScriptedTable(noisy_script)
    proposers, solver = set(game.roles) - {game.solver}, game.solver
    rows = []
    for step in range(4):
        table.open(step, game.seats(step))
        played = game.play(step, table)
        advantages = [[[None] * len(group.samples) for group in stream.groups] for stream in played.streams]
        rows += episode_rows(SimpleNamespace(step=step, episode=played, advantages=advantages))
    table.close()
    assert {r["role"] for r in rows if is_proposal(r)} == proposers
    assert {r["role"] for r in rows if not is_proposal(r)} == {solver}
    assert not [verdict(r) for r in rows if verdict(r).startswith(("wrong", "right"))]
    kinds = {kind_of(exchange) for exchange in exchanges(rows)}
    assert kinds <= {AGREES, DIFFERS, UNANSWERED, NO_QUESTION}
    assert AGREES in kinds
    assert all(len(exchange) == 2 for exchange in exchanges(rows) if kind_of(exchange) in (AGREES, DIFFERS))


def test_words_for_a_roles_accuracy():
    family = [{"game": {}}, {"game": {"pass_rates": [1]}}]
    assert [accuracy_word(role, family) for role in ("proposer", "coach", "solver")] == [
        "accepted",
        "accepted",
        "agree",
    ]
    assert [accuracy_word(role, [{"game": {}}, {}]) for role in ("challenger", "solver")] == ["right", "right"]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ({}, ""),
        ({"proposals": 0, "usable": 0, "refused": {}}, ""),
        ({"proposals": 8, "usable": 2, "refused": {}}, "2 of 8 questions usable"),
        (
            {"proposals": 8, "usable": 2, "refused": {"empty": 1, "off_format": 3}},
            "2 of 8 questions usable, most refused: off format 3",
        ),
    ],
)
def test_what_a_steps_proposals_came_to(log, words):
    assert harvest(log) == words


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("1 + 1?", "the same, and nothing of the draft."), ("Something else", "saw:\n\n```text\nSomething else\n```")],
)
def test_what_else_a_challenger_may_have_seen(prompt, said):
    draft, challenge = exchanges(step_rows((W, R)))[0]
    assert said in exchanges_markdown("agon", [[draft, {**challenge, "prompt": prompt}]], "first")


@given(st.text(st.one_of(st.characters(), st.sampled_from("`~\n #\x1b[m"))))
def test_a_completion_never_leaves_its_block(text):
    page = exchanges_markdown("t", [[row("solver", R, text=text)]], "first")
    fence, said = re.findall(r"^(`{3,})text\n(.*?)\n\1$", page, re.DOTALL | re.MULTILINE)[-1]
    assert fence not in said
    assert page.endswith(f"{fence}text\n{said}\n{fence}\n")
    assert "\x1b" not in page


# A step as text


def metrics(step=0, accuracy=(0.5, 0.5), trained=4, **game):
    def stream(seat, right):
        return {
            "seat": seat,
            "completions": 8,
            "accuracy": right,
            "well_formed": 1.0,
            "reward_mean": 1.0,
            "tokens_mean": 20.0,
            "rows_trained": trained,
        }

    return {
        "step": step,
        "wall_s": {"total": 4.0, "generate": 2.0, "verify": 0.1, "update": 1.5},
        "tokens": {"generated": 100, "trained": 60},
        "streams": {"drafter": stream("A", accuracy[0]), "challenger": stream("B", accuracy[1])},
        "game": game,
    }


def test_a_step_in_one_line():
    assert progress_line(metrics(1, (0.5, None), conversions=2, pairs=8), 20, 75) == (
        "step 2/20 | drafter A: 50% right, reward 1.00 | challenger B: reward 1.00 | conversions 2 | "
        "100 tokens at 50/s | 4.0 s, 1:15 left"
    )
    assert "no signal, nothing moved" in progress_line(metrics(trained=0), 20, 75)


def test_flat_metrics():
    assert flat({"a": {"b": 1, "c": None, "d": float("nan")}, "e": "text"}) == {"a/b": 1}


# The closing words


def config(steps=24, **values):
    return RunConfig(game="agon", model="tiny", **{"tasks": "letters", "steps": steps, **values})


def score(share, low=None, high=None):
    return {
        "pass_at_1": share,
        "ci95": [share - 0.1 if low is None else low, share + 0.1 if high is None else high],
        "tokens_final_mean": 20.0,
        "tokens_total_mean": 40.0,
    }


def evaluation(seats, directions=None, *, tasks="letters", n=100, per_problem=None):
    scored = directions or seats
    best = max(scored, key=lambda name: scored[name]["pass_at_1"])
    result = {
        "mode": "cascade" if directions else "single",
        "tasks": tasks,
        "n": n,
        "samples": 1,
        "best": best,
        "seats": seats,
        **scored[best],
    }
    if directions:
        mean = sum(found["pass_at_1"] for found in directions.values()) / len(directions)
        result |= {"directions": directions, "mean_of_directions": mean}
    return result | ({"per_problem": per_problem} if per_problem else {})


def summary(metrics_rows, evaluations=None, path="runs/x", **values):
    return "\n".join(closing_summary(config(len(metrics_rows), **values), metrics_rows, evaluations or {}, path))


def curve(*shares):
    return [metrics(i, (share, None)) for i, share in enumerate(shares)]


def test_few_steps_claim_nothing():
    said = summary(curve(0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    assert "7 steps: too few to say whether anything improved" in said
    assert "up" not in said
    assert "more steps may help" not in said


def test_the_first_quarter_against_the_last():
    said = summary(curve(0.1, 0.2, 0.2, 0.3, 0.4, 0.5, 0.7, 0.8))
    assert "on the problems it trained on, the first 2 steps against the last 2:" in said
    assert "  drafter: 15% -> 75% right, up 60 points\n" in said
    assert "challenger" not in said
    assert "more steps may help: lite-selfplay train --resume runs/x --steps 18" in said


def test_worse_is_called_worse():
    said = summary(curve(0.8, 0.8, 0.5, 0.5, 0.5, 0.5, 0.2, 0.2))
    assert "80% -> 20% right, down 60 points" in said
    assert "more steps" not in said


def test_scatter_is_not_called_a_change():
    said = summary(curve(0.1, 0.9, 0.5, 0.5, 0.5, 0.5, 0.2, 0.9))
    assert "50% -> 55% right, up 5 points, within the scatter of the steps" in said
    assert "more steps" not in said


def test_no_change():
    assert "50% -> 50% right, no change" in summary(curve(*[0.5] * 8))


def test_nothing_judged():
    assert "no completion was judged" in summary(curve(*[None] * 8))


def test_silent_steps_are_counted_and_looked_into():
    rows = [metrics(i, trained=4 * (i % 2)) for i in range(8)]
    assert "4 of 8 steps gave no signal" in summary(rows)
    assert "to see why most steps gave no signal: lite-selfplay report runs/x --duels 3" in summary(rows)
    assert "1 of 8 steps gave no signal" in summary([metrics(0, trained=0), *rows[1::2], *rows[1::2][:3]])


def test_what_was_not_measured_can_be():
    rows = curve(*[0.5] * 8)
    assert "lite-selfplay eval runs/x --tasks letters" in summary(rows)
    assert "lite-selfplay eval runs/x --tasks HELD_OUT.jsonl" in summary(rows, tasks="/data/train.jsonl")
    assert "lite-selfplay eval 'my runs/x' --tasks" in summary(rows, path="my runs/x")
    assert " eval " not in summary(rows, {"untouched": evaluation({"base": score(0.5)})})


def test_a_run_that_was_cut_short_can_be_finished():
    said = closing_summary(config(20), curve(*[0.5] * 8), {}, "runs/x")
    assert "to finish it: lite-selfplay train --resume runs/x" in said


def cascade(a, b, ab, ba, **values):
    return evaluation({"A": score(a), "B": score(b)}, {"A->B": score(ab), "B->A": score(ba)}, **values)


def test_the_moments_that_tell_what_happened():
    moments = {
        "untouched": evaluation({"base": score(0.05)}),
        "after cold start": cascade(0.30, 0.30, 0.32, 0.34),
        "after 12 steps": cascade(0.9, 0.9, 0.9, 0.9),
        "after 24 steps": cascade(0.60, 0.30, 0.35, 0.31),
    }
    said = summary(curve(*[0.5] * 24), moments)
    assert "pass@1 on letters (100 problems), untouched -> after cold start -> after 24 steps:" in said
    assert "  A: 5% -> 30% -> 60%, up 30 points\n" in said
    assert "  B: 5% -> 30% -> 30%, no change\n" in said
    assert "  A->B: n/a -> 32% -> 35%, up 3 points, which may be chance (the 95% intervals overlap)" in said
    assert "  B->A: n/a -> 34% -> 31%, down 3 points, which may be chance" in said
    assert "trained on" not in said
    assert "more steps" not in said  # 12 steps were better


def test_the_best_of_several_moments_suggests_more_steps():
    moments = {"before training": cascade(0.3, 0.3, 0.3, 0.3), "after 8 steps": cascade(0.6, 0.6, 0.6, 0.2)}
    assert "--steps 18" in summary(curve(*[0.5] * 8), moments)
    moments["after 8 steps"] = cascade(0.3, 0.3, 0.5, 0.05)  # the better direction alone would flatter
    assert "more steps" not in summary(curve(*[0.5] * 8), moments)


@pytest.mark.parametrize(
    ("gained", "said"), [(8, "up 80 points (p = 0.0078)"), (3, "up 30 points, which may be chance")]
)
def test_the_same_problems_are_compared_in_pairs(gained, said):
    before = {str(i): {"base": False} for i in range(10)}
    after = {str(i): {"A": i < gained} for i in range(10)}
    moments = {
        "untouched": evaluation({"base": score(0.0)}, n=10, per_problem=before),
        "after 8 steps": evaluation({"A": score(gained / 10)}, n=10, per_problem=after),
    }
    assert said in summary(curve(*[0.5] * 8), moments)


def test_one_evaluation_or_other_problems_leave_the_training_curve():
    one = {"after 8 steps": evaluation({"A": score(0.4)})}
    other = {"untouched": evaluation({"base": score(0.1)}, tasks="stories"), **one}
    for moments in (one, other):
        said = summary(curve(*[0.5] * 8), moments)
        assert "  A: 40%\n" in said
        assert "no other evaluation on these problems" in said
        assert "on the problems it trained on" in said


# The model card


def front_matter(card):
    _, block, rest = card.split("---\n", 2)
    return yaml.safe_load(block), rest


def test_a_card_holds_what_a_reader_needs():
    card = model_card(config(24, seed=7, cold_start=True, seats={"A": {}}), 12, metrics=curve(0.5, 0.5))
    facts, text = front_matter(card)
    assert facts["library_name"] == "peft"
    assert facts["tags"] == ["lite-selfplay", "agon", "lora"]
    assert "base_model" not in facts  # `tiny` is on no hub
    assert "after 12 of 24 steps" in text
    for fact in ("seed: 7", "weights held in 4bit", "200 generated, 120 trained on", "cold start, 20 batches of 16"):
        assert fact in text
    assert "no figure in this folder comes from held-out problems" in text
    assert "lite-selfplay eval RUN" in text
    assert "licence" in text


def test_a_card_names_a_base_on_a_hub():
    run = RunConfig(game="grpo", model="qwen3-0.6b", seats={"solver": {"lr": 1e-4, "rank": 8, "alpha": 16}})
    facts, text = front_matter(model_card(run, 200))
    assert facts["base_model"] == "Qwen/Qwen3-0.6B"
    assert facts["base_model_relation"] == "adapter"
    assert 'AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")' in text
    assert 'PeftModel.from_pretrained(base, "adapters/solver")' in text
    assert "| `solver` | 0.0001 | linear | 8 | 16 |" in text


def test_a_card_with_figures_does_not_say_that_there_are_none():
    moments = {"untouched": evaluation({"base": score(0.05)}), "after 8 steps": cascade(0.6, 0.3, 0.35, 0.31)}
    card = model_card(config(8, seats={"A": {}, "B": {}}), 8, evaluations=moments)
    assert "no figure" not in card
    assert "|  | untouched | after 8 steps |" in card
    assert "| base model | 5% [-5, 15] | - |" in card
    assert "held out from training (100 of `letters`)" in card


ODD = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("`|\n\"':#-*{}[]\\<>")), min_size=1)


@given(ODD, ODD)
def test_odd_names_break_no_card(model, tasks):
    run = RunConfig(game="agon", model=model, tasks=tasks, seats={"A": {}})
    facts, text = front_matter(model_card(run, 1))
    assert set(facts) >= {"library_name", "pipeline_tag", "tags"}
    assert text.startswith("\n# agon on ")
    (snippet,) = re.findall(r"^```python\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    compile(snippet, "snippet", "exec")


@given(ODD)
def test_names_stay_on_one_line(name):
    assert "\n" not in plain(name) + code(name)
    fence = re.match("`+", code(name)).group()
    assert not re.search(f"(?<!`){fence}(?!`)", code(name)[len(fence) : -len(fence)])


def test_reports_and_summaries_load_no_torch():
    check = "import lite_selfplay.reports, sys; assert not {'torch', 'transformers', 'scipy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
