"""What a run on one machine does without: a folder each, found by `lite_selfplay.scan`, which can be deleted.

Nothing outside imports one, and none imports another. Importing an extra registers what it adds.
"""
