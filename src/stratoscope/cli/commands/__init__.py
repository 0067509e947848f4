"""The commands, one file each: parse, call one study, hand back the answer. Heavy imports are inside them."""
