"""The subcommands of `onebasin`, one file each: options, checks of files, and printing.

Nothing heavy is imported before a command runs, so help and errors in flags are instant.
"""
