"""Training: sampling for a game, the updates of its seats (LoRA adapters), and the cold start."""
