"""Shows a run as a page in the browser, from a read-only local server or from a single file. Nothing here writes into a
run folder, and text of a model is never treated as markup."""
