"""Publishers of a head: their streams and paths, moves to another head, defence against floods."""
