"""The `tidegate` command: a thin layer that reads options, calls the packages below it and shows what they say.

It decides nothing. Each subcommand lives in a module of its own, imported only when it is called, so that `tidegate
publish` does not pay for what `tidegate up` needs.
"""
