"""`python -m headrace`: the command-line interface, where no script of it is on the path."""

from headrace.tablelayer.cli.main import main

if __name__ == "__main__":
    main()
