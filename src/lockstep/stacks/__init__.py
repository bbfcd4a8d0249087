"""The training stacks that Lockstep knows. Each stack is one folder."""
