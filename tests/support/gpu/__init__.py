"""What the tests in ``tests/gpu`` run on ranks: on a GPU, and smaller or fewer of it on the CPU."""
