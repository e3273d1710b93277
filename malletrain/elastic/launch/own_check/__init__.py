"""A job's script is checked beside it: a session says which script runs (`running_script`), the launcher asks the
daemon whether it is to be checked (`check_beside`), and a process that can write into a folder of its own alone runs
`malletrain check` (`confined_check`). Standard library only."""
