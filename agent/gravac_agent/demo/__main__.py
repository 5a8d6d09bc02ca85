"""``torchrun --standalone --nproc-per-node 2 -m gravac_agent.demo``: one rank of the demo."""

from gravac_agent.demo.train import main

if __name__ == "__main__":
    main()
