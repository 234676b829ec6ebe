"""One module per subcommand, each with one click command as its entry."""
