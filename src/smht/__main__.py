"""`python -m smht`: the command-line tool, for those who choose the interpreter, and for launchers like torchrun."""

from smht.cli.main import main

if __name__ == "__main__":
    main()
