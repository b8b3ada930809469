"""Speaking with a run: its base, its seats and its cascades, in the terminal and over HTTP.

Reading order: `reply` (a question and what it has brought so far), `speakers` (who speaks, several replies to a
generation), `play` (a person in a role), `desk` (questions that wait), `request` and `server` (the HTTP interface). How
it looks in a terminal is the command line's business.
"""
