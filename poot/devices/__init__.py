"""Arrays and kernels: one `Device` behind one interface, opened by `select.select_device`. Never heard of a sequence.

Importing this package settles how long idle threads spin, which has to be known before torch loads its OpenMP runtime
(libgomp reads it once, when it is loaded; GCC's libgomp manual, "GOMP_SPINCOUNT"). Its default is to spin for some ten
milliseconds after every parallel operation. A decode step has hundreds of them, a few microseconds apart, and the
threads that serve sockets want the same cores: as soon as one of them runs, spinning threads hold the core that the
last working thread waits for. 5000 rounds, about 250 microseconds, bridge the longest gap between two operations of a
step and little more. Measured on 2 cores, one row of a 135 M model: with the cores to itself a step takes 10.6 ms, as
with the default, and 13.2 ms at 1000 rounds; beside a busy neighbour about 40 ms, at 20,000 rounds 76, at 1000 24.
A GOMP_SPINCOUNT or OMP_WAIT_POLICY that is set already stays, so an operator of a shared machine may choose otherwise.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:  # the count would overrule it
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
