"""Dense peaks of known devices, as their makers publish them.

Dense means without structured sparsity, which most data sheets print, doubled, beside or instead. Consumer cards are at
accumulation in float32, which is what training uses and half of what is advertised.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One device, by all the names it is known to give itself."""

    name: str
    """A regular expression for the whole name, in lower case, without its maker and its brand."""
    tflops: Mapping[str, float]
    """Dense peak by dtype, as torch names it. A dtype that is not there is not published, or not supported."""
    source: str
    processors: int | None = None
    """Multiprocessors of the whole device, as torch counts them: a partition has fewer, and goes by the same name."""
    fma: int | None = None
    """Multiply-adds in bfloat16, else float16, of one multiprocessor in one clock."""


def _row(
    name: str,
    source: str,
    *,
    fp32: float | None = None,
    tf32: float | None = None,
    half: float | None = None,
    fp16: float | None = None,
    fp8: float | None = None,
    processors: int | None = None,
    fma: int | None = None,
) -> Row:
    published = {"float32": fp32, "tfloat32": tf32, "float16": fp16 or half, "bfloat16": half, "float8": fp8}
    tflops = {dtype: peak for dtype, peak in published.items() if peak is not None}
    return Row(name, tflops, source, processors, fma)


_H100 = "https://www.nvidia.com/en-us/data-center/h100/"
_H200 = "https://www.nvidia.com/en-us/data-center/h200/"
_ADA = "NVIDIA Ada GPU architecture whitepaper 2.01, FP32 accumulate"
_AMD = "https://www.amd.com/en/products/accelerators/instinct"
_TPU = "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm"

DEVICES = (
    _row(
        r"gb[23]00",
        "https://www.nvidia.com/en-us/data-center/gb200-nvl72/, one chip",
        fp32=80,
        tf32=1250,
        half=2500,
        fp8=5000,
    ),
    _row(
        r"b[23]00( sxm6( ac)?)?",
        "NVIDIA DGX B200 and DGX B300 data sheets, one of eight",
        fp32=80,
        tf32=1125,
        half=2250,
        fp8=4500,
    ),
    _row(r"h200 nvl", _H200, fp32=60, tf32=417.5, half=835.5, fp8=1671, processors=132, fma=2048),
    _row(
        r"h200( sxm5?)?( 141gb)?( hbm3e)?", _H200, fp32=67, tf32=494.5, half=989.5, fp8=1979, processors=132, fma=2048
    ),
    _row(
        r"gh200( (120gb|480gb|144g hbm3e))?",
        "https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/",
        fp32=67,
        tf32=494.5,
        half=989.5,
        fp8=1979,
        processors=132,
        fma=2048,
    ),
    _row(r"h100 nvl", _H100, fp32=60, tf32=417.5, half=835.5, fp8=1671, processors=132, fma=2048),
    _row(r"h100 pcie", _H100, fp32=51, tf32=378, half=756.5, fp8=1513, processors=114, fma=2048),
    _row(r"h100 (80gb hbm3|sxm5?( 80gb)?)", _H100, fp32=67, tf32=494.5, half=989.5, fp8=1979, processors=132, fma=2048),
    _row(
        r"h800( sxm5?)?( 80gb)?( hbm3)?",
        "as H100 SXM, of which it differs in NVLink and FP64",
        fp32=67,
        tf32=494.5,
        half=989.5,
        fp8=1979,
        processors=132,
        fma=2048,
    ),
    _row(r"h20", "NVIDIA H20 data sheet", fp32=44, tf32=74, half=148, fp8=296),
    _row(
        r"a[18]00( (sxm4?|pcie|40gb|80gb))*",
        "https://www.nvidia.com/en-us/data-center/a100/",
        fp32=19.5,
        tf32=156,
        half=312,
        processors=108,
        fma=1024,
    ),
    _row(
        r"a30",
        "https://www.nvidia.com/en-us/data-center/products/a30-gpu/",
        fp32=10.3,
        tf32=82,
        half=165,
        processors=56,
        fma=1024,
    ),
    _row(
        r"l40s",
        "https://www.nvidia.com/en-us/data-center/l40s/",
        fp32=91.6,
        tf32=183,
        half=362,
        fp8=733,
        processors=142,
        fma=512,
    ),
    _row(
        r"l40",
        "https://www.nvidia.com/en-us/data-center/l40/",
        fp32=90.5,
        tf32=90.5,
        half=181,
        fp8=362,
        processors=142,
        fma=256,
    ),
    _row(
        r"l4",
        "https://www.nvidia.com/en-us/data-center/l4/, halved: it prints sparse figures",
        fp32=30.3,
        tf32=60,
        half=121,
        fp8=242,
        processors=58,
        fma=512,
    ),
    _row(
        r"a40",
        "https://www.nvidia.com/en-us/data-center/a40/",
        fp32=37.4,
        tf32=74.8,
        half=149.7,
        processors=84,
        fma=512,
    ),
    _row(
        r"a10g",
        "80 multiprocessors x 1710 MHz x 256 multiply-adds, as AWS states for G5 instances",
        tf32=35,
        half=70,
        processors=80,
        fma=256,
    ),
    _row(
        r"a10",
        "https://www.nvidia.com/en-us/data-center/products/a10-gpu/",
        fp32=31.2,
        tf32=62.5,
        half=125,
        processors=72,
        fma=512,
    ),
    _row(r"rtx a6000", "NVIDIA Ampere GA102 whitepaper 2.0", fp32=38.7, tf32=77.4, half=154.8, processors=84, fma=512),
    _row(
        r"rtx 6000 ada generation",
        "https://www.nvidia.com/en-us/design-visualization/rtx-6000/, halved: sparse",
        fp32=91.1,
        tf32=182,
        half=364,
        fp8=728,
        processors=142,
        fma=512,
    ),
    _row(
        r"rtx 5090",
        "NVIDIA RTX Blackwell GPU architecture whitepaper, FP32 accumulate",
        fp32=104.8,
        tf32=104.8,
        half=209.5,
        fp8=419,
        processors=170,
        fma=256,
    ),
    _row(r"rtx 4090", _ADA, fp32=82.6, tf32=82.6, half=165.2, fp8=330, processors=128, fma=256),
    _row(r"rtx 4080", _ADA, fp32=48.7, tf32=48.7, half=97.5, fp8=195, processors=76, fma=256),
    _row(
        r"rtx 3090",
        "NVIDIA Ampere GA102 whitepaper 2.0, FP32 accumulate",
        fp32=35.6,
        tf32=35.6,
        half=71,
        processors=82,
        fma=256,
    ),
    _row(
        r"v100 sxm2( (16|32)gb)?",
        "https://www.nvidia.com/en-us/data-center/v100/",
        fp32=15.7,
        fp16=125,
        processors=80,
        fma=512,
    ),
    _row(r"t4", "https://www.nvidia.com/en-us/data-center/tesla-t4/", fp32=8.1, fp16=65, processors=40, fma=512),
    _row(r"mi355x( (vf|oam))?", f"{_AMD}/mi350/mi355x.html", fp32=157.3, half=2500, fp8=5000, processors=256),
    _row(
        r"mi325x( (vf|oam))?",
        f"{_AMD}/mi300/mi325x.html",
        fp32=163.4,
        tf32=653.7,
        half=1307,
        fp8=2610,
        processors=304,
        fma=1024,
    ),
    _row(
        r"mi300x( (vf|oam))?",
        f"{_AMD}/mi300/mi300x.html",
        fp32=163.4,
        tf32=653.7,
        half=1307,
        fp8=2610,
        processors=304,
        fma=1024,
    ),
    _row(
        r"mi250x( mi250)?",
        f"{_AMD}/mi200/mi250x.html, one of two dies",
        fp32=23.95,
        half=191.5,
        processors=110,
        fma=512,
    ),
    _row(
        r"(mi250x )?mi250", f"{_AMD}/mi200/mi250.html, one of two dies", fp32=22.65, half=181, processors=104, fma=512
    ),
    _row(r"gaudi ?2", "Intel Gaudi 2 whitepaper", half=432, fp8=865),
    _row(r"tpu v6e|tpu v6 lite", _TPU, half=918),
    _row(r"tpu v5p", _TPU, half=459),
    _row(r"tpu v5e|tpu v5 lite", _TPU, half=197),
    _row(r"tpu v4", _TPU, half=275),
)
"""Every device whose dense peak has a source."""
