"""Builds the native CPU kernels (poot/devices/kernels/cpu) when poot is installed; all else is in pyproject.toml.

The library is optional: where there is no C compiler the installation goes on without it, and torch serves. It is
loaded with ctypes and needs no Python headers. On x86-64 the kernels are compiled for three instruction sets, of which
the library chooses one when it is loaded, so that a wheel runs on every processor; hence never -march=native.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("poot/devices/kernels")
SOURCES = KERNELS / "cpu"

# -ffp-contract=off: dequantization is promised bit for bit; the kernels ask for fused arithmetic where they want it.
FLAGS = [
    "-std=gnu11", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden",
]  # fmt: skip
X86_VARIANTS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512",
    ],
}  # fmt: skip


class BuildKernels(build_ext):
    """Compiles kernels.c once for each instruction set, and uses OpenMP if the compiler has it."""

    def build_extension(self, ext: Extension) -> None:
        flags = [*FLAGS, *ext.extra_compile_args]
        if self._compiles(["-fopenmp"]):
            flags.append("-fopenmp")
            ext.extra_link_args = [*ext.extra_link_args, "-fopenmp"]
        # A universal macOS build compiles every file for two architectures at once: no flags of one of them.
        is_x86 = platform.machine().lower() in ("x86_64", "amd64") and "arm64" not in os.environ.get("ARCHFLAGS", "")
        variants = X86_VARIANTS if is_x86 else {}
        macros: list[tuple[str, str | None]] = [("POOT_HAS_X86_VARIANTS", "1")] if variants else []
        ext.extra_objects = list(ext.extra_objects)
        for isa, isa_flags in variants.items():
            ext.extra_objects += self.compiler.compile(
                [str(SOURCES / "kernels.c")],
                output_dir=os.path.join(self.build_temp, isa),
                macros=[*macros, ("POOT_ISA", isa)],
                extra_postargs=[*flags, *isa_flags],
                depends=ext.depends,
            )
        ext.define_macros = macros
        ext.extra_compile_args = flags
        super().build_extension(ext)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # there is no PyInit function: the library is no Python module

    def _compiles(self, flags: list[str]) -> bool:
        """Whether a small program compiles and links with `flags`."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text("int probe(void) { return 0; }\n")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=flags)
                self.compiler.link_shared_object(objects, str(Path(folder, "probe.so")), extra_postargs=flags)
            except Exception as error:  # setuptools raises errors of several private families here
                print(f"building the kernels without {flags}: {error}", file=sys.stderr)
                return False
            return True


setup(
    ext_modules=[
        Extension(
            "poot.devices.kernels._native",
            sources=[str(SOURCES / "dispatch.c"), str(SOURCES / "kernels.c")],
            depends=["setup.py", *(str(path) for path in sorted(SOURCES.glob("*.h")))],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
