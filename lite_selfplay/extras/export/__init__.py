"""Exports a seat (a LoRA adapter) of a run as files for other tools, and verifies the files with those tools. Read the
modules in this order: `request` checks a request and has the model card, `exporting` has `export` and writes the three
formats, `gguf_file` writes files for llama.cpp and Ollama, `verification` compares scores, `reader` is the script that
scores with such a tool and imports nothing of this library."""
