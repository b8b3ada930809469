"""The page in a real browser: opened, clicked, filtered, read by keyboard, attacked by what models wrote."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.extras.view.answers import ViewedRun
from lite_selfplay.extras.view.page import RunServer, write_bundle

from .conftest import append, pair

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

PATIENCE_S = 30.0
SHOWN = ("<script>window.harmed = 1</script>", "\u241b[2J", "U+202E", "U+D800", "Show all 1,000,000 characters")
"""What stands in the place of the five texts of the hostile run."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open runs, served or as a file; at the end nothing may have been said on the console."""
    said: list[str] = []
    ends: list[Callable[[], None]] = []

    def page_at(url: str, **about: Any) -> Any:
        page = browser.new_page(**about)
        ends.append(page.close)
        page.set_default_timeout(1000 * PATIENCE_S)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        return page

    def start(*runs: Path, bundle: Path | None = None, **about: Any) -> Any:
        viewed = [ViewedRun(path) for path in runs]
        if bundle is not None:
            return page_at(write_bundle(viewed, bundle).as_uri(), **about)
        server = RunServer(viewed)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        page = page_at(server.url, **about)
        ends.extend([server.shutdown, server.server_close])
        return page

    yield start
    for end in ends:
        end()
    assert said == []


def until(page: Any, condition: str, about: Any = None) -> None:
    """Wait until JavaScript finds something true; the page's own policy forbids Playwright's way of waiting for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(condition, about):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def in_list(page: Any, text: str) -> None:
    until(page, "text => document.getElementById('cases').innerText.includes(text)", text)


def in_detail(page: Any, text: str) -> None:
    until(page, "text => document.getElementById('detail').innerText.includes(text)", text)


def test_a_click_on_a_curve_lists_the_steps_cases(run: Path, opened: Callable[..., Any]):
    page = opened(run)
    assert page.inner_text("#title") == "run"
    assert page.input_value("#step") == "4"  # the last one
    chart = page.locator(".chart", has_text="Reward").locator("svg").last
    box = chart.bounding_box()
    chart.click(position={"x": 50, "y": box["height"] / 2})
    in_list(page, "the challenge was right, the draft wrong")
    assert page.input_value("#step") == "1"
    in_detail(page, "a reply at step 0")
    assert "The challenger saw the same, and then:" in page.inner_text("#detail")
    assert "an attempt" in page.inner_text("#detail")


def test_filters_and_words_in_all_steps(run: Path, opened: Callable[..., Any]):
    page = opened(run)
    page.click("#all")
    page.click("#filters button:has-text('the draft was right, the challenge wrong')")
    until(page, "document.querySelectorAll('#cases li').length === 1")
    in_detail(page, "a reply at step 1")
    assert page.input_value("#step") == "2"
    page.click("#filters button[aria-pressed=true]")
    page.keyboard.press("/")
    page.keyboard.type("A DRAFT at step 2")
    until(page, "document.getElementById('found').innerText === '1 case in 4 of 4 steps'")
    page.fill("#words", "nobody said this")
    until(page, "document.getElementById('found').innerText.startsWith('No case in the run matches')")


def test_by_keyboard(run: Path, opened: Callable[..., Any]):
    page = opened(run)
    for key, step in (("ArrowLeft", "3"), ("Home", "1"), ("ArrowRight", "2"), ("End", "4")):
        page.keyboard.press(key)
        until(page, "step => document.getElementById('step').value === step", step)
    page.keyboard.press("2")
    assert page.locator(".chart h3").first.inner_text() == "Conversions a step"
    page.keyboard.press("?")
    assert page.is_visible("#keys")
    page.keyboard.press("Escape")
    assert not page.is_visible("#keys")
    page.keyboard.press("t")
    assert page.get_attribute("html", "data-theme") == "light"


def test_the_same_problem_at_two_steps_side_by_side(run: Path, opened: Callable[..., Any]):
    page = opened(run)
    page.keyboard.press("s")
    page.click(".where button:has-text('1')")
    until(page, "document.querySelectorAll('#detail .case').length === 2")
    first, second = page.locator("#detail .case").all_inner_texts()
    assert "a reply at step 3" in first
    assert "a reply at step 0" in second
    page.keyboard.press("Escape")
    until(page, "document.querySelectorAll('#detail .case').length === 1")


def test_two_runs_over_each_other(run: Path, tmp_path: Path, opened: Callable[..., Any]):
    shutil.copytree(run, tmp_path / "other")
    append(tmp_path / "other", 4, pair(4, True, True))
    page = opened(run, tmp_path / "other")
    assert page.inner_text("#title") == "run and other"
    legend = page.locator(".chart", has_text="Reward").locator(".legend").inner_text()
    assert [name in legend for name in ("drafter, run", "drafter, other")] == [True, True]
    page.select_option("#which", label="other")
    page.keyboard.press("Tab")
    until(page, "document.getElementById('of').innerText === 'of 5'")


def test_a_run_that_goes_on_is_followed(run: Path, opened: Callable[..., Any]):
    page = opened(run)
    page.evaluate("clearTimeout(timer)")
    append(run, 4, pair(4, False, True))
    page.evaluate("watch()")
    in_list(page, "step 5")
    assert page.input_value("#step") == "5"
    page.keyboard.press("Home")
    in_list(page, "step 1")
    append(run, 5, pair(5, False, True))
    page.evaluate("clearTimeout(timer); watch()")
    until(page, "document.getElementById('of').innerText === 'of 6'")
    assert page.input_value("#step") == "1"  # whoever reads is left alone


@pytest.mark.parametrize("bundled", [False, True], ids=["served", "as a file"])
def test_hostile_texts_stay_text(hostile: Path, tmp_path: Path, opened: Callable[..., Any], bundled: bool):
    page = opened(hostile, bundle=tmp_path / "out" if bundled else None)
    for number in range(5):
        page.locator("#cases button").nth(number).click()
        until(page, "n => document.querySelectorAll('#cases button')[n].ariaCurrent === 'true'", number)
        shown = page.inner_text("#detail")
        if not bundled or number < 4:
            assert SHOWN[number] in shown
    if not bundled:
        page.click("button:has-text('Show all 1,000,000 characters') >> nth=0")
        until(page, "document.querySelector('#detail .part .text').innerText.length === 1000000")
    assert page.evaluate("window.harmed") is None
    assert page.locator("#cases img, #detail img, #cases script, #detail script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_bundle_works_without_a_server(run: Path, tmp_path: Path, opened: Callable[..., Any]):
    page = opened(run, bundle=tmp_path / "out", offline=True)
    page.keyboard.press("Home")
    in_list(page, "the challenge was right, the draft wrong")
    page.click("#all")
    page.fill("#words", "a reply at step 2")
    until(page, "document.getElementById('found').innerText === '1 case in 4 of 4 steps'")
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    assert page.locator(".chart").count() > 0


def test_on_a_phone_a_case_takes_the_place_of_the_list(run: Path, opened: Callable[..., Any]):
    page = opened(run, viewport={"width": 390, "height": 844})
    assert page.is_visible("#list")
    page.locator("#cases button").first.click()
    page.wait_for_selector("#detail .case", state="visible")
    assert not page.is_visible("#list")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click(".back")
    assert page.is_visible("#list")
