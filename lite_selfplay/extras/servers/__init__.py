"""Completions from vLLM servers that hold the same base.

`backend` samples there; `client` speaks their HTTP interface.
"""
