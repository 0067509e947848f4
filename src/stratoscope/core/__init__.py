"""The nouns: errors, progress, results and run folders. Imports nothing else of ours."""
