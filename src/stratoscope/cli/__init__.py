"""The command line: parse, validate, call one study, show the answer."""
