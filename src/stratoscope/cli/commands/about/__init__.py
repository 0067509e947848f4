"""Commands about results and about the tool itself."""
