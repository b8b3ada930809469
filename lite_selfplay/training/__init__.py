"""Training: the live table, the update of the seats and the cold start. No rules of games, no files of run folders."""
