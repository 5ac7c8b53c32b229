"""The ranks of one island: how they talk and how they fail together. They know nothing of what is agreed on."""
