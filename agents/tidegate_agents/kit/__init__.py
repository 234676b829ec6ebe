"""What every agent is built with: dispatch, outbox, questions and answers, bounded memory, the chronicle."""
