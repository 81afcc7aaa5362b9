"The program: the command `annotated-transformer`, `python -m annotated_transformer`, and what torchrun starts."

import sys


def main() -> None:
    "`cli.main`; Ctrl-C while its modules are imported is one line too."
    try:
        from annotated_transformer.cli.main import main

        main()
    except KeyboardInterrupt:
        print("annotated-transformer: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
