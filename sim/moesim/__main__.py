"""``python -m moesim``: the command line."""

from moesim.cli.main import main

if __name__ == "__main__":
    main()
