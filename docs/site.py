"""What the site adds to the pages: the README is its first one, and files that are not pages are named, not linked."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Without links to source files: the site holds pages and pictures alone."""
    place = Path(page.file.src_path).parent

    def kept(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = target.partition("#")[0]
        known = not path or ":" in path or files.get_file_from_path(_joined(place, path)) is not None
        outside = (ROOT / "docs" / place / path).exists() or (ROOT / path).exists()
        return link[0] if known or not outside else text

    return LINK.sub(kept, markdown)


def _joined(place: Path, path: str) -> str:
    parts: list[str] = []
    for part in (place / path).parts:
        parts = parts[:-1] if part == ".." and parts else [*parts, part]
    return "/".join(parts)
