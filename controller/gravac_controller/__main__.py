"""``python -m gravac_controller``: the same commands as ``gravac``."""

from gravac_controller.cli import main

if __name__ == "__main__":
    main(prog_name="gravac")
