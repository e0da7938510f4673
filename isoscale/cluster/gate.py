"""A process that waits to be let go, and then becomes a job's coordinator: `python -S gate.py FD COMMAND...`.

The service writes down its process id and birth while it waits here, and then writes a byte into the pipe FD. If the
service dies first the pipe ends, and nothing was started that nobody knows of. `exec` changes neither id nor birth.
"""

import os
import sys


def main() -> None:
    pipe = int(sys.argv[1])
    let_go = os.read(pipe, 1)
    os.close(pipe)
    if not let_go:
        os._exit(0)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
