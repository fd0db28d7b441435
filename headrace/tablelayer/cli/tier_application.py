"""The tiering job as a file for `spark-submit`: `spark-submit $(headrace tier --application) --once`."""

import sys
from pathlib import Path

if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]  # this folder's modules are found by their whole names only

if __name__ == "__main__":
    from headrace.tablelayer.cli.main import main

    sys.argv[1:1] = ["tier"]
    main()
