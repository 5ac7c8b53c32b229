"""The rules, one a file: who joins, what a round gathers, when it closes, how a run ends. They know memory only."""
