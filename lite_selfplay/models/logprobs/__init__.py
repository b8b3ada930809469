"""Log-probabilities of given completions, with gradients: for the update, scores and the sampler's check."""
