"""Every figure of isoscale's pages is made here, by one command each, and kept in `results/` with that command.

A folder has one subject and the modules that only its benchmarks need; `lib` has what several folders share, `peers`
what other systems need to run beside isoscale. Benchmarks start from the project's root as
`python -m benchmarks.FOLDER.NAME`; README.md lists them. None of it is installed.
"""
