"""A run as text, tables and figures, read from its folder; nothing here writes into it."""
