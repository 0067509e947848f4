"""`python -m stratoscope` is the `stratoscope` command."""

from stratoscope.cli.main import run

if __name__ == "__main__":
    run()
