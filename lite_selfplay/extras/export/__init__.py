"""Exports a seat (a LoRA adapter) of a run as files for other tools, and verifies them with those tools. Reading order:
`exporting` (`export` and the model card), `forms` (adapter, merged model or GGUF), `gguf_file` (for llama.cpp and
Ollama), `verification` (the comparison), `reader` (runs the other tool, without this library)."""
