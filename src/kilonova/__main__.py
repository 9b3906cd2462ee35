"""`python -m kilonova` is the same as `kilonova`."""

from kilonova.cli import main

if __name__ == "__main__":
    main()
