"""The command line: parse, validate, call one study, print where the result is."""
