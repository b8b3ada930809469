"""The game of a finished run: what it declares of itself is what its run is shown by."""

from lite_selfplay.config.user_files import file_of, was_run
from lite_selfplay.errors import RequestError
from lite_selfplay.games import Game, find_game
from lite_selfplay.runs.folder import RunFolder


def game_of(folder: RunFolder) -> tuple[type[Game], str]:
    """The class of a run's game, and a warning where it cannot be had.

    Then it is `Game` itself, under which a run is shown without figures and words of its own: nobody knows its name, or
    it is a file that this user has not run, since to look at a run runs no code of strangers. Raises ConfigError for a
    damaged configuration.
    """
    name = folder.config().game.name
    without = f"{folder.path} is shown without its game's own figures and words:"
    try:
        if file_of(name) is not None and not was_run(name):
            return Game, f"{without} {name} is code, which is not run for that"
        return find_game(name), ""
    except RequestError as error:  # the name is unknown, or the file cannot be read or imported
        return Game, f"{without} {error}"
