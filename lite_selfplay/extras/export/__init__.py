"""A seat as files that other tools load, verified by those tools.

Reading order: `exporting` (what `export` is asked for and does, and the model card), `forms` (the three kinds of
folder), `gguf_file` (what llama.cpp and Ollama read), `verification` (the comparison), `reader` (the process that knows
nothing of this library).
"""
