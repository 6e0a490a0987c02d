"""`python -m isotropy` is `isotropy`."""

from isotropy.cli.main import main

main()
