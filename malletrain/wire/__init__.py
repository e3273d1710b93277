"""The contract with workers and people: messages, rows, the HTTP client, MUNGE. Standard library only."""
