"""The evaluation mode `search`: solutions written step by step, each step checked by a critic (section 3.6).

A solver writes a step, up to a blank line; the critic judges it. A step that is judged incorrect is written anew, up to
five times ("up to 5 retries", section 4.2), and the last one stays. All searches of all problems go on together, a step
at a time. Beside it stand the solver's plain samples and their majority vote, each with the tokens that it took: a
rejected step and every critique count. A reply without a judgement lets a step pass (ours), as the critic would
otherwise cost what it cannot read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lite_selfplay.data import BASE, Completion
from lite_selfplay.games.modes import Examiner, Found, Judged, Measured, Mode, elected, score_of
from lite_selfplay.games.spc.cases import CRITIC
from lite_selfplay.games.spc.replies import critic_prompt, read_critique, solver_prompt

SEARCHES = 5
"""Searches, and plain samples, of a problem: as many as self-consistency votes over (section 4.2)."""
RETRIES = 5
MOST_STEPS = 64
"""Steps of a solution (ours): one that is still going on then is cut off."""
_STEP_END = "\n\n"


@dataclass
class _Search:
    """A solution in the making: its problem's place, its number, what is kept of it, and its other completions."""

    problem: int
    number: int
    kept: list[Completion] = field(default_factory=list)
    spent: list[Completion] = field(default_factory=list)
    attempts: int = 0
    over: bool = False

    @property
    def text(self) -> str:
        return "".join(completion.text for completion in self.kept)

    def place(self, what: str) -> tuple[int, object]:
        """What a question is about, from which its seed follows."""
        return self.problem, f"{what}/{self.number}/{len(self.kept)}/{self.attempts}"

    def take(self, completion: Completion, most_tokens: int) -> None:
        """Keep a step, and see whether it was the last one."""
        self.kept.append(completion)
        self.attempts = 0
        tokens = sum(len(one.token_ids) for one in self.kept)
        self.over = completion.stop != "string" or len(self.kept) >= MOST_STEPS or tokens >= most_tokens


def measure_search(examiner: Examiner, seats: Sequence[str]) -> Found:
    """The solver, the first of two seats, alone; its vote; and its search under the critic, the last seat."""
    critic = CRITIC if CRITIC in seats else seats[-1]
    solver = next((seat for seat in seats if seat != critic), BASE)
    count = len(examiner.problems)
    places = [(i, k) for i in range(count) for k in range(SEARCHES)]
    examiner.progress(0, f"{solver} answers by itself")
    prompts = [solver_prompt(problem.text) for problem in examiner.problems]
    samples = examiner.say(
        solver, [prompts[i] for i, _ in places], examiner.sampling, [(i, f"plain/{k}") for i, k in places]
    )
    plain = _rows(examiner.judge([(one, i) for one, (i, _) in zip(samples, places, strict=True)]))
    searches = [_Search(i, k) for i, k in places]
    _run(examiner, searches, solver, critic, prompts)
    found = _rows(examiner.judge([(_whole(search, prompts, solver), search.problem) for search in searches]))
    spent = [[Judged(one, False, False) for one in search.spent] for search in searches]
    every = [one for each in spent for one in each]
    return Found(
        {solver: Measured(plain, score_of(plain))},
        {
            f"vote of {SEARCHES}": elected(plain),
            "search": Measured(found, score_of(found, before=every)),
            f"search + vote of {SEARCHES}": elected(found, also_read=every),
        },
    )


def _run(examiner: Examiner, searches: Sequence[_Search], solver: str, critic: str, prompts: Sequence[str]) -> None:
    """Write all solutions to their ends."""
    writing = replace(examiner.sampling, stop=(_STEP_END,))
    judging = replace(examiner.sampling, temperature=0.0, top_p=1.0)
    most = examiner.sampling.max_tokens
    while active := [search for search in searches if not search.over]:
        left = len({search.problem for search in active})
        examiner.progress(2 * len(prompts) - left, f"{solver} writes, {critic} checks: {len(active)} solutions go on")
        steps = examiner.say(
            solver,
            [prompts[search.problem] for search in active],
            writing,
            [search.place("step") for search in active],
            [search.text for search in active],
        )
        asked = [i for i, completion in enumerate(steps) if completion.text.strip()]
        questions = [
            critic_prompt(examiner.problems[active[i].problem].text, active[i].text, steps[i].text) for i in asked
        ]
        about = [active[i].place("critique") for i in asked]
        critiques = dict(zip(asked, examiner.say(critic, questions, judging, about) if asked else [], strict=True))
        for i, (search, completion) in enumerate(zip(active, steps, strict=True)):
            rejected = False
            if i in critiques:
                search.spent.append(critiques[i])
                rejected = read_critique(critiques[i]).judgement == "incorrect"
            if rejected and search.attempts < RETRIES:
                search.attempts += 1
                search.spent.append(completion)
            else:
                search.take(completion, most)


def _whole(search: _Search, prompts: Sequence[str], solver: str) -> Completion:
    """A search's solution as one completion."""
    last = search.kept[-1]
    ids = tuple(token for completion in search.kept for token in completion.token_ids)
    text, stop = search.text, "length" if last.stop == "string" else last.stop
    return Completion(prompts[search.problem], text, (), ids, (), stop, solver, -1, last.sampling)


def _rows(judged: Sequence[Judged]) -> list[list[Judged]]:
    return [list(judged[i : i + SEARCHES]) for i in range(0, len(judged), SEARCHES)]


SEARCH_MODE = Mode(measure_search, stages=lambda seats: 2)
