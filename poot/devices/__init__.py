"""Arrays and kernels: one `Device` behind one interface, opened by `select.select_device`. Never heard of a sequence.

Importing this package settles how long idle threads spin, which has to be known before torch loads its OpenMP runtime
(libgomp reads it once, when it is loaded; GCC's libgomp manual, "GOMP_SPINCOUNT"). Its default is to spin for some ten
milliseconds after every parallel operation. A decode step has hundreds of them, a few microseconds apart, and the
threads that serve sockets want the same cores: as soon as one of them runs, spinning threads hold the core that the
last working thread waits for, and a step of 20 ms takes a second. A thousand rounds, about 50 microseconds, bridge
the gap between two operations and no more. A GOMP_SPINCOUNT that is set already stays.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
