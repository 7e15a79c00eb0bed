"""`python -m pagermcp` is the `pagermcp` command."""

from pagermcp.cli import main

main()
