"""A run as a page in the browser: what it shows of a run folder, a server of it that only reads, and one file of it.

Nothing here writes into a run folder, and no text of a model is ever taken for markup.
"""
