"""Peaks of real devices, by the names that they give themselves."""

import re

import pytest
from rows import each_row

from perf_callbacks import ConfigError, PerfConfig
from perf_callbacks.flops.peaks import peak_rates as peaks
from perf_callbacks.flops.peaks.device_peaks import DEVICES
from perf_callbacks.flops.peaks.peak_rates import DTYPES, Peaks

DENSE_BF16 = {
    2500: ("NVIDIA GB300", "NVIDIA GB200", "AMD Instinct MI355X"),
    2250: ("NVIDIA B300 SXM6 AC", "NVIDIA B200"),
    989.5: (
        "NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "NVIDIA GH200 144G HBM3e", "NVIDIA H100 80GB HBM3",
        "NVIDIA H800",
    ),
    835.5: ("NVIDIA H200 NVL", "NVIDIA H100 NVL"),
    756.5: ("NVIDIA H100 PCIe",),
    148: ("NVIDIA H20",),
    312: (
        "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "A100-SXM4-40GB", "NVIDIA A100-SXM-80GB",
        "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA A800-SXM4-80GB", "NVIDIA A800 80GB PCIe",
    ),
    358: ("NVIDIA A100-SXM-64GB",),
    165: ("NVIDIA A30",),
    362: ("NVIDIA L40S",),
    181: ("NVIDIA L40", "AMD Instinct MI250", "AMD Instinct MI210"),
    121: ("NVIDIA L4",),
    149.7: ("NVIDIA A40",),
    125: ("NVIDIA A10",),
    70: ("NVIDIA A10G",),
    154.8: ("NVIDIA RTX A6000",),
    111.1: ("NVIDIA RTX A5000",),
    364: ("NVIDIA RTX 6000 Ada Generation",),
    261.1: ("NVIDIA RTX 5000 Ada Generation",),
    503.8: ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
    440.5: ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
    209.5: ("NVIDIA GeForce RTX 5090",),
    112.6: ("NVIDIA GeForce RTX 5080",),
    165.2: ("NVIDIA GeForce RTX 4090",),
    104.4: ("NVIDIA GeForce RTX 4080 SUPER",),
    97.5: ("NVIDIA GeForce RTX 4080",),
    71: ("NVIDIA GeForce RTX 3090",),
    59.5: ("NVIDIA GeForce RTX 3080 10GB",),
    61.3: ("NVIDIA GeForce RTX 3080 12GB",),
    2310: ("AMD Instinct MI350X",),
    1307: ("AMD Instinct MI325X", "AMD Instinct MI300X", "AMD Instinct MI300X VF"),
    980.6: ("AMD Instinct MI300A",),
    191.5: ("AMD Instinct MI250X",),
    355.5: ("Intel(R) Data Center GPU Max 1100",),
    373.9: ("Ascend910B1",),
    353.9: ("Ascend910B2", "Ascend910B2C", "Ascend910_9362", "Ascend910_9392"),
    294.9: ("Ascend910B3",),
    245.8: ("Ascend910B4", "Ascend910B4-1"),
    275: ("TPU v4",),
    459: ("TPU v5", "TPU v5p"),
    197: ("TPU v5 lite",),
    918: ("TPU v6 lite",),
    432: ("GAUDI2",),
}  # fmt: skip
"""Device names by dense TFLOPS in bfloat16."""

FP16_ONLY = {
    125: ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB"),
    112: ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
    10.6: ("Tesla P100-SXM2-16GB",),
    9.3: ("Tesla P100-PCIE-16GB", "Tesla P100-PCIE-12GB"),
    65: ("Tesla T4",),
}  # fmt: skip

UNKNOWN = [
    # parts of the same number that are other devices
    "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 5080 Laptop GPU",
    "NVIDIA GeForce RTX 4080 Laptop GPU", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3080 with Max-Q Design",
    "NVIDIA GeForce RTX 5090 Laptop GPU", "NVIDIA GeForce RTX 5090 D", "NVIDIA RTX 6000 Ada Generation Laptop GPU",
    "NVIDIA RTX 5000 Ada Generation Laptop GPU", "NVIDIA RTX A5000 Laptop GPU", "NVIDIA A100X",
    "NVIDIA A800 40GB Active", "NVIDIA H100 80GB HBM2e", "NVIDIA H100 64GB HBM2", "NVIDIA H800 PCIe", "NVIDIA H20-3e",
    "NVIDIA L400", "NVIDIA L20", "NVIDIA T400", "Tesla V100S-PCIE-32GB", "Tesla V100-FHHL-16GB",
    # nobody publishes one figure
    "NVIDIA GB10", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "AMD Instinct MI308X",
    # parts of a device
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "GRID A100-40C",
    # too little said
    "NVIDIA GeForce RTX 3080", "Intel(R) Data Center GPU Max 1550", "AMD Radeon Graphics", "Ascend910B",
    "Ascend910_9382", "NVIDIA H100", "NVIDIA Graphics Device", "NVIDIA", "cpu", "mps", "",
    # made up
    "Imaginary 9000", "NVIDIA B2000", "XH100 PCIe", "AMD Instinct MI9000X",
]  # fmt: skip


def tflops(device, dtype="bfloat16", processors=None):
    found = peaks.lookup(device, processors)
    peak = None if found is None else found.peak_flops_per_second(dtype)
    return None if peak is None else peak / 1e12


NAMES = [(device, dense) for dense, devices in DENSE_BF16.items() for device in devices]
OLD_NAMES = [(device, dense) for dense, devices in FP16_ONLY.items() for device in devices]


def test_a_device_has_the_dense_peak_of_its_data_sheet():
    assert len(NAMES) + len(OLD_NAMES) >= 75
    assert [(device, tflops(device)) for device, dense in NAMES if tflops(device) != pytest.approx(dense, 0.01)] == []
    assert [(device, tflops(device, "float16")) for device, _ in OLD_NAMES] == OLD_NAMES
    assert {tflops(device) for device, _ in OLD_NAMES} == {None}
    assert {tflops(name) for name in ("nvidia h100 80gb hbm3", "NVIDIA-H100-80GB-HBM3")} == {989.5}


def test_no_name_leads_to_two_rows():
    names = [device for device, _ in NAMES + OLD_NAMES]
    rows = {name: [row for row in DEVICES if re.fullmatch(row.name, peaks.bare_name(name))] for name in names}
    assert {len(found) for found in rows.values()} == {1}


@each_row("row", DEVICES)
def test_a_row_has_a_source_and_a_name_that_leads_to_it(row):
    assert len(row.source) > 10
    assert [other for other in DEVICES if re.fullmatch(other.name, peaks.bare_name(row.called))] == [row]
    rates = [row.tflops[dtype] for dtype in ("float32", "tfloat32", "float16", "float8") if dtype in row.tflops]
    assert rates == sorted(rates), "smaller numbers are never slower"
    if row.processors is not None:
        assert peaks.lookup(row.called, row.processors).by_dtype
        slices = [(row.called, row.processors // 7), (row.called, row.processors - 2), (f"{row.called} MIG 1g.10gb",)]
        assert [peaks.lookup(*part) for part in slices] == [None] * 3


@each_row("device", UNKNOWN)
def test_a_device_that_is_not_known_has_no_peak(device):
    assert peaks.lookup(device) is None


def test_peaks_of_other_dtypes_follow_data_sheets():
    dense = {"NVIDIA GB300": 15000, "NVIDIA GB200": 10000, "NVIDIA B300 SXM6 AC": 13125, "NVIDIA B200": 9000}
    for name in ("fp4", "float4_e2m1fn_x2"):
        assert {device: tflops(device, name) for device in dense} == dense
    assert tflops("NVIDIA H200", "fp4") is None
    assert (tflops("NVIDIA B200", "fp32"), tflops("NVIDIA GB200", "fp32")) == (75, 80)
    assert [tflops(f"AMD Instinct {name}", "float32") for name in ("MI250X", "MI250", "MI210")] == [47.9, 45.3, 45.3]
    assert PerfConfig(peak_tflops="fp4=9000").peak_tflops == "fp4=9000"


@each_row(
    ("device", "processors", "dense"),
    [
        ("AMD Instinct MI250X / MI250", 110, 191.5),
        ("AMD Instinct MI250X / MI250", 104, 181),
        ("AMD Instinct MI250X / MI250", None, None),
        ("AMD Instinct MI250X / MI250", 38, None),
        ("AMD Instinct MI300X", 304, 1307),
        ("AMD Instinct MI300X", 38, None),
        ("NVIDIA GeForce RTX 3080", 68, 59.5),
        ("NVIDIA GeForce RTX 3080", 70, 61.3),
        ("NVIDIA GeForce RTX 3080", 48, None),
        ("Intel(R) Data Center GPU Max 1550", 1024, 838.9),
        ("Intel(R) Data Center GPU Max 1550", 896, 734),
        ("Intel(R) Data Center GPU Max 1550", 512, 419.4),
        ("Intel(R) Data Center GPU Max 1550", 448, 367),
        ("Intel(R) Data Center GPU Max 1550", 256, None),
        ("Intel(R) Data Center GPU Max 1100", 448, 355.5),
    ],
)
def test_devices_of_equal_names_differ_by_their_multiprocessors(device, processors, dense):
    assert tflops(device, processors=processors) == dense


@each_row(
    ("arch", "processors", "dense"),
    [
        ("gfx942:sramecc+:xnack-", 304, 1307),  # MI300X or MI325X, whose peaks are the same
        ("gfx942:sramecc+:xnack-", 228, 980.6),
        ("gfx942:sramecc+:xnack-", 80, None),  # MI308X
        ("gfx942:sramecc+:xnack-", 38, None),  # a partition
        ("gfx90a:sramecc+:xnack-", 110, 191.5),
        ("gfx90a:sramecc+:xnack-", 104, 181),  # MI210 or MI250
        ("gfx950:sramecc+:xnack-", 256, None),  # MI350X or MI355X, which differ by their clock
        ("gfx906:sramecc+:xnack-", 60, None),
        ("gfx1103", 6, None),
        ("gfx942", None, None),
        (None, 304, None),
    ],
)
def test_an_instinct_without_a_name_is_known_by_how_it_is_built(arch, processors, dense):
    found = peaks.lookup("AMD Radeon Graphics", processors, arch)
    assert (None if found is None else found.by_dtype["bfloat16"] / 1e12) == dense
    assert peaks.lookup("AMD Radeon RX 7900 XTX", processors, arch) is None, "a device with a name"


@each_row(
    ("device", "names"),
    [
        ("H100", "NVIDIA H100 80GB HBM3, NVIDIA H100 NVL or NVIDIA H100 PCIe"),
        ("NVIDIA H100 80GB HBM2e", "NVIDIA H100 80GB HBM3"),
        ("nvidia b-200", "NVIDIA B200"),
        ("A100", "NVIDIA A100-SXM-64GB or NVIDIA A100-SXM4-80GB"),
        ("P100", "Tesla P100-PCIE-16GB or Tesla P100-SXM2-16GB"),
        ("V100-PCIE", "Tesla V100-PCIE-32GB"),
        ("Tesla V100-FHHL-16GB", None),
        ("NVIDIA L40S PCIe", "NVIDIA L40S"),
        ("TPU v6", "TPU v6 lite"),
        ("MI 300X", "AMD Instinct MI300X"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        # other chips, whose names differ by a letter or a digit
        ("NVIDIA V200 PCIe", None),
        ("Tesla P40 PCIe", None),
        ("Tesla V100S-PCIE-32GB", None),
        ("NVIDIA B100", None),
        ("NVIDIA H20-3e", "NVIDIA H20"),
        ("NVIDIA L20", None),
        ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 4070", None),
        ("AMD Instinct MI308X", None),
        ("Imaginary 9000", None),
        ("cpu", None),
        ("NVIDIA", None),
        ("", None),
    ],
)
def test_near_matches_are_asked_about(device, names):
    meant = "" if names is None else f" (did you mean {names}?)"
    assert peaks.unknown(device) == f"No dense peak is known for {device!r}{meant}"
    assert peaks.advice(device).startswith(f"{peaks.unknown(device)}: set peak_tflops to ")


def test_a_given_peak_holds_for_its_dtypes_or_for_all():
    given = peaks.given("989.5")
    assert [given.peak_flops_per_second(dtype) for dtype in ("bfloat16", "float32")] == [989.5e12] * 2
    assert (given.source, given.measured) == ("peak_tflops=989.5", False)
    given = peaks.given("bf16=989.5,fp32=67")
    assert given.by_dtype == {"bfloat16": 989.5e12, "float32": 67e12}
    assert given.peak_flops_per_second("float16") is None
    eight = Peaks({"float8": 4.0}, "example")
    assert [eight.peak_flops_per_second(name) for name in ("float8_e4m3fn", "torch.float8_e5m2", "int8")] == [
        4,
        4,
        None,
    ]


def test_the_ideal_time_adds_up_dtype_by_dtype():
    given = Peaks({"bfloat16": 4e12, "float32": 1e12}, "example")
    assert peaks.ideal_seconds({"bfloat16": 8e12, "float32": 1e12}, given) == 3.0
    assert peaks.ideal_seconds({"bfloat16": 8e12, "float16": 0}, given) == 2.0
    assert peaks.ideal_seconds({"bfloat16": 8e12, "float16": 1}, given) is None


@each_row("dtype", [*DTYPES, *DTYPES.values()])
def test_a_dtype_that_the_configuration_takes_is_understood(dtype):
    text = PerfConfig(peak_tflops=f"{dtype}=2.5").peak_tflops
    assert peaks.given(text).by_dtype == {DTYPES.get(dtype, dtype): 2.5e12}


@each_row(
    ("text", "sentence"),
    [
        (
            "bf17=1",
            "peak_tflops: got 'bf17', wanted one of bf16, fp16, half, tf32, fp32, fp64, fp8, fp4; did you mean bf16?",
        ),
        ("zzz=1", "peak_tflops: got 'zzz', wanted one of bf16, fp16, half, tf32, fp32, fp64, fp8, fp4."),
        ("0", "peak_tflops: got '0', wanted TFLOPS above 0 such as 989.5."),
        ("bf16=fast", "peak_tflops: got 'fast', wanted TFLOPS above 0 such as 989.5."),
        ("inf", "peak_tflops: got 'inf', wanted TFLOPS above 0 such as 989.5."),
    ],
)
def test_a_peak_that_makes_no_sense_is_refused_in_words(text, sentence):
    with pytest.raises(ConfigError) as error:
        peaks.given(text)
    assert str(error.value) == sentence
    with pytest.raises(ConfigError):
        PerfConfig(peak_tflops=text)
