"""Speaking with a run: its base, its seats and its cascades, in the terminal and over HTTP.

Reading order: `reply` (a question and what it has brought so far), `speakers` (who speaks, several replies to a
generation), `conversation` and `play` (what `chat` does), `desk` (questions that wait), `request`, `choices`, `routes`
and `server` (the HTTP interface). How it looks in a terminal is the command line's business.
"""
