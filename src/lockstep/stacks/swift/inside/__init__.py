"""Code that the processes of an ms-swift job import: where the recorder hooks in, and what a CPU needs."""
