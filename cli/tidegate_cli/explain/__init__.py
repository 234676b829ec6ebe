"""From what agents tell an operator to sentences and tables: pure functions, one module per kind of answer."""
