"""Write what is compiled into a wheel, its SBOM: `sbom.py VERSION GGML_LOCK OUTPUT [libstdc++==VERSION]`.

The list is in CycloneDX's form, and lies where PEP 770 says. It names what is compiled into the libraries, and no times
or random numbers: the same build writes the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import Cython

CXX_LIBRARIES = {
    "libstdc++": ("GPL-3.0-or-later WITH GCC-exception-3.1", "functions that older systems lack"),
    "libc++": ("Apache-2.0 WITH LLVM-exception", "with libc++abi, libunwind and compiler-rt"),
}


def main() -> None:
    version, lock_path, output, *compiled_in = sys.argv[1:]
    lines = (line.split(maxsplit=1) for line in Path(lock_path).read_text(encoding="utf-8").splitlines())
    lock = {line[0]: line[1].strip() for line in lines if len(line) == 2 and line[0] != "#"}
    package, package_version = lock["package"].split("==")
    components = [
        component("ggml", lock["version"], "MIT", f"unpatched, out of the source distribution of {package}",
                  purl=f"pkg:pypi/{package}@{package_version}",
                  hashes=[{"alg": "SHA-256", "content": lock["sha256"]}]),
        component("llamafile sgemm", lock["version"], "MIT", "matrix kernels, part of ggml's sources"),
        component("YaRN", lock["version"], "MIT", "positions beyond the trained context, part of ggml's sources"),
        component("Cython", Cython.__version__, "Apache-2.0", "code that Cython writes into each module",
                  purl=f"pkg:pypi/cython@{Cython.__version__}"),
    ]  # fmt: skip
    components += [
        component(name, number, *CXX_LIBRARIES[name]) for name, number in (part.split("==") for part in compiled_in)
    ]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": component("ollama_engine", version, "MIT", "", purl=f"pkg:pypi/ollama-engine@{version}")
        },
        "components": components,
    }
    Path(output).write_text(json.dumps(bom, indent=2) + "\n", encoding="utf-8")


def component(name: str, version: str, licence: str, description: str, **more: Any) -> dict[str, Any]:
    known = {"expression": licence} if " " in licence else {"license": {"id": licence}}
    return {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        **({"description": description} if description else {}),
        "licenses": [known],
        **more,
    }


if __name__ == "__main__":
    main()
