"`python -m annotated_transformer` is the command line; torchrun starts it this way."

from annotated_transformer.cli import main

if __name__ == "__main__":
    main()
