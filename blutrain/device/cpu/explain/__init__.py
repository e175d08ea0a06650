"""What a kernel would cost on a GPU, counted on the CPU."""
