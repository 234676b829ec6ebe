"""Topics and patterns: covering sets, trees of words, the routes of links, and waiting until routes are live."""
