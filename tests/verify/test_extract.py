r"""Which text of a completion counts as its answer."""

import pytest

from lite_selfplay.verify.extract import extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # blocks first, then boxes, then statements
        (r"\boxed{1} the answer is 2 <answer>3</answer>", "3"),
        (r"The answer is 2. \boxed{1}", "1"),
        ("<answer>1</answer> or rather <answer>2</answer>", "2"),
        ("<answer>5", "5"),
        (r"<answer>2 + 3 is \boxed{5}</answer>", "5"),
        ("<answer>The answer is 5 because 2+3=5.</answer>", "5"),
        (r"<answer> </answer> \boxed{4}", "4"),
        # boxes
        (r"First \boxed{5} apples. Then the rest: \boxed{7}.", "7"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{} so \boxed{5}", "5"),
        (r"\boxed{5} and \boxed{}", "5"),
        (r"\boxed{5", "5"),
        # statements
        ("The answer is 12.", "12"),
        ("The answer is 12.5. That is all.", "12.5"),
        ("**Answer:** 12", "12"),
        ("The answer is **12**.", "12"),
        ("The final answer is $\\frac{1}{2}$", r"$\frac{1}{2}$"),
        ("Final Answer: The final answer is $12$. I hope it is correct.", "$12$"),
        ("The final answer is:\n\n$$\n12\n$$", "12"),
        ("The answer is\n\\[ 12 \\]", "12"),
        ("### Final answer\n\n12", "12"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("Final answer: The first is 34 and the second is 12.", "34 and the second is 12"),
        ("The answer is the one that Bob gave.", "the one that Bob gave"),
        (r"First \boxed{5}. With tax, the final answer is $34$.", "$34$"),
        (r"So \boxed{5}. I hope that the final answer is correct.", "5"),
        (r"So \boxed{3/4}. The final answer is in lowest terms: 3 and 4 are coprime.", "3/4"),
        (r"The final answer is 6, no: \boxed{5}.", "5"),
        ("The answer to the question is 5 dollars.", "5 dollars"),
        ("The answers are 3 and 4.", "3 and 4"),
        ("The answer is 12 because 5 + 7 = 12.", "12"),
        ("The answer is 12, because 5 + 7 = 12.", "12"),
        ("The answer is 12, so we are done.", "12"),
        ("The answer is 12, so that 5 + 7 = 12.", "12"),
        ("The answer is so 12", "so 12"),
        ("Therefore, the answer is 12.", "12"),
        ("Therefore, the answer is 1.5 \\times 10^{3}.", r"1.5 \times 10^{3}"),
        ("The answer is therefore 12.", "12"),
        ("The answer is, thus, **12**.", "12"),
        ("The correct answer is **hence** $12$", "$12$"),
        ("The answer is theretofore 12", "theretofore 12"),
        ("The answer is 5! = 120", "5! = 120"),
        ("The answer is 5!", "5"),
        ("The answer is 3. No: the answer is 4.", "4"),
        ("The answer is not 12", "not 12"),
        ("5 + 13 = 18\n#### 1,018", "1,018"),
        # values given together stay together
        (r"\boxed{1} or \boxed{2}", "1, 2"),
        ("$$\\boxed{1}$$\n\nand\n\n$$\\boxed{2}$$", "1, 2"),
        (r"It is either \boxed{1} or maybe \boxed{2}", "1, 2"),
        (r"<answer>\boxed{1}. Or else it is \boxed{2}</answer>", "1, 2"),
        (r"either 1 or $\boxed{2}$", "either 1 or 2"),
        (r"\boxed{1} or 2.", "1 or 2"),
        (r"\boxed{1} or so", "1"),
        # only what follows closed reasoning counts
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"\boxed{1}</think> nothing more", None),
        (r"<think>\boxed{1}", None),
        (r"<think>a</think>\boxed{1}<think>", None),
        # nothing to be had
        ("5 + 7 = 12", None),
        ("I get 12", None),
        ("#### 3. Compute the sum\n12", None),
        ("The answer is", None),
        ("", None),
    ],
)
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.timeout(10)
@pytest.mark.parametrize("piece", ["*", " ", "answer ", r"\boxed{", "answer: $$", r"\boxed{1} ", "<answer>", "! "])
def test_extraction_is_quick_on_repetitive_text(piece: str) -> None:
    extract_answer("answer is " + piece * (60_000 // len(piece)))
