"""The subcommands of `onebasin`: typed options and what runs them, one file each.

Nothing heavy is imported before a command runs, so that help and mistakes in flags are instant.
"""
