"""SQLM: questions from a topic alone, labelled by majority votes. `sqlm.py` has the rules, `topics.py` the prompts."""
