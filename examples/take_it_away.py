"""From a run to what others use: a chat, a page to pass on, and a model in another tool.

python examples/take_it_away.py            trains the random model first; minutes
python examples/take_it_away.py RUN SEAT   with a run and a seat of yours

Every part is a command: what runs here can be typed into a terminal.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

QUESTION = "What is 7 + 8 + 9?"


def lite_selfplay(*arguments, **options):
    """Run a command to its end and return what it prints; what went wrong in it ends this script as well."""
    command = [sys.executable, "-m", "lite_selfplay_cli", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout


def chat(run):
    """Everybody's answer to a question, by a pipe."""
    (line,) = lite_selfplay("chat", run, "--json", input=QUESTION + "\n").splitlines()
    for name, answer in json.loads(line)["answers"].items():
        print(f"chat, {name}: {answer['text'][:60]!r}")


def bundle(run, folder):
    """The run's episodes and curves as one HTML file, which opens without a server or network."""
    print(lite_selfplay("view", run, "--bundle", folder).strip())
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("browser: none is here; the page opens in any")
        return
    page = (Path(folder) / "index.html").resolve().as_uri()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom"]
    shown = subprocess.run([browser, *flags, page], capture_output=True, text=True, check=True, timeout=120).stdout
    print(f"browser: the page drew {shown.count('<svg')} charts")


def export(run, seat, folder):
    """The seat as a model of its own. transformers loads it in a process of its own, and has to answer as the seat."""
    made = json.loads(lite_selfplay("export", run, seat, "--to", "merged", "--out", folder, "--json"))
    print(f"{made['verification']['reader']}: {made['verification']['sentence']}")
    print("to serve it, or to pass it on:", *made["commands"], sep="\n  ")


if __name__ == "__main__":
    run, seat = (Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) == 3 else (Path("runs/taken-away"), "A")
    if not run.exists():
        lite_selfplay("train", "agon", "--model", "tiny", "--tasks", "letters", "--steps", "5", "--run-dir", run)
    chat(run)
    bundle(run, f"{run.name}-page")
    export(run, seat, f"{run.name}-{seat}")
