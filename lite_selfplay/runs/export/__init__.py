"""A seat as files that other tools load, verified by those tools, and pushed to a hub.

Reading order: `request` and `exporting` (what `export` does), `whole_folder`, `forms` (the four kinds of folder),
`gguf_file`, `gguf_vocabulary` and `templates` (what llama.cpp and Ollama read), `card`, `verification` (the
comparison), `foreign` (the process that knows nothing of this library), `hub` (`push`).
"""
