"""`python -m atelier_dagster.cli` is `atelier`."""

from atelier_dagster.cli import main

if __name__ == "__main__":
    main()
