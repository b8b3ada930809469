"""A run as one small file: what `view --bundle` writes, with fewer episodes.

`python docs/page.py RUN FILE`; a RUN that is such a file is written anew, with today's page around what it holds.
"""

import re
import sys
from pathlib import Path

from lite_selfplay.extras.view.answers import ViewedRun
from lite_selfplay.extras.view.page import bundle

LIMIT = 200_000  # bytes of episodes
HELD = re.compile(r'(?<=id="held">).*?(?=</script>)', re.DOTALL)

if __name__ == "__main__":
    run, file = map(Path, sys.argv[1:])
    if run.is_file():
        (held,) = HELD.findall(run.read_text(encoding="utf-8"))
        text = HELD.sub(lambda _: held, bundle([]))
    else:
        text = bundle([ViewedRun(run)], LIMIT)
    file.write_text(text, encoding="utf-8")
    print(f"written: {file}, {file.stat().st_size / 1000:.0f} kB")
