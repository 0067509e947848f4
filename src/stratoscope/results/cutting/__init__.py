"""Results of leaving out blocks: depth curves, cuts, pruned models, perplexity."""
