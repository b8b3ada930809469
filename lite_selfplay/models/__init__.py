"""Everything that works with tensors or tokens, and nothing that knows a rule of a game or a run.

`adapters.py` has the seats (the only module that touches PEFT), `chat_template.py` the tokenizer and its template,
`memory.py` estimates memory; `sources/` turns a model's name into a folder, `generation/` samples, `logprobs/` computes
log-probabilities, and `backends/` offers both to the trainer.
"""
