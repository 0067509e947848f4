"""The one contract of every run: its folder, its parts, what it refuses, resumes and saves."""
