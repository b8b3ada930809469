"""Speaking with a run: `speakers` (who answers, alone or after reading another), `conversation` (what was said).

How it looks in a terminal is the command line's business.
"""
