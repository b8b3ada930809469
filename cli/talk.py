"""What `chat` and `serve` share: their flags, and where they say how loading goes."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lite_selfplay.training.progress import Progress

Run = Annotated[str, typer.Argument(help="A run folder, or a base model by any name that train takes.", metavar="RUN")]
Checkpoint = Annotated[
    str,
    typer.Option(help="The seats as saved last, as measured best in training, or of a step: last, best, step-20."),
]
MaxCompletionTokens = Annotated[
    int | None, typer.Option(help="Cap of an answer.", min=1, max=1_000_000, show_default="the run's, else 512")
]
Precision = Annotated[
    str | None, typer.Option(help="4bit, bf16, fp16 or fp32.", show_default="the run's; 4bit for a base model")
]


def to_stderr() -> "Progress":
    """Progress beside the conversation, which alone is on stdout."""
    from lite_selfplay.training.progress import PlainProgress

    return PlainProgress(lambda line: typer.echo(line, err=True))
