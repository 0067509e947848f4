"""The nouns: errors, progress, values, matrices, curves, statements, records, options. Imports nothing else of ours."""
