"""Exports a seat as files that other tools load, and verifies them with those tools.

Reading order: `exporting` (`export` and the model card), `forms` (the three kinds of folder), `gguf_file` (for
llama.cpp and Ollama), `verification` (the comparison), `reader` (a process that does not import this library).
"""
