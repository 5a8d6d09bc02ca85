"""``torchrun --standalone --nproc-per-node 2 -m gravac_lab.demo``: one rank of the demo."""

from gravac_lab.demo.train import main

if __name__ == "__main__":
    main()
