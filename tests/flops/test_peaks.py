"""Peaks of real devices, by the names that they give themselves."""

import re

import pytest
from rows import each_row

from perf_callbacks import ConfigError, PerfConfig
from perf_callbacks.flops.peaks import peak_rates as peaks
from perf_callbacks.flops.peaks.device_peaks import DEVICES
from perf_callbacks.flops.peaks.peak_rates import DTYPES, Peaks

DENSE_BF16 = {
    "NVIDIA GB300": 2500,
    "NVIDIA GB200": 2500,
    "NVIDIA B300 SXM6 AC": 2250,
    "NVIDIA B200": 2250,
    "NVIDIA H200": 989.5,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA GH200 480GB": 989.5,
    "NVIDIA GH200 120GB": 989.5,
    "NVIDIA GH200 144G HBM3e": 989.5,
    "NVIDIA H100 80GB HBM3": 989.5,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H100 PCIe": 756.5,
    "NVIDIA H800": 989.5,
    "NVIDIA H20": 148,
    "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312,
    "A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM-80GB": 312,
    "NVIDIA A100-PCIE-40GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA A800-SXM4-80GB": 312,
    "NVIDIA A800 80GB PCIe": 312,
    "NVIDIA A100-SXM-64GB": 358,
    "NVIDIA A30": 165,
    "NVIDIA L40S": 362,
    "NVIDIA L40": 181,
    "NVIDIA L4": 121,
    "NVIDIA A40": 149.7,
    "NVIDIA A10": 125,
    "NVIDIA A10G": 70,
    "NVIDIA RTX A6000": 154.8,
    "NVIDIA RTX A5000": 111.1,
    "NVIDIA RTX 6000 Ada Generation": 364,
    "NVIDIA RTX 5000 Ada Generation": 261.1,
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 503.8,
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": 440.5,
    "NVIDIA GeForce RTX 5090": 209.5,
    "NVIDIA GeForce RTX 5080": 112.6,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 4080 SUPER": 104.4,
    "NVIDIA GeForce RTX 4080": 97.5,
    "NVIDIA GeForce RTX 3090": 71,
    "NVIDIA GeForce RTX 3080 10GB": 59.5,
    "NVIDIA GeForce RTX 3080 12GB": 61.3,
    "AMD Instinct MI355X": 2500,
    "AMD Instinct MI350X": 2310,
    "AMD Instinct MI325X": 1307,
    "AMD Instinct MI300X": 1307,
    "AMD Instinct MI300X VF": 1307,
    "AMD Instinct MI300A": 980.6,
    "AMD Instinct MI250X": 191.5,
    "AMD Instinct MI250": 181,
    "AMD Instinct MI210": 181,
    "Intel(R) Data Center GPU Max 1100": 355.5,
    "Ascend910B1": 373.9,
    "Ascend910B2": 353.9,
    "Ascend910B2C": 353.9,
    "Ascend910B3": 294.9,
    "Ascend910B4": 245.8,
    "Ascend910B4-1": 245.8,
    "Ascend910_9362": 353.9,
    "Ascend910_9392": 353.9,
    "TPU v4": 275,
    "TPU v5": 459,
    "TPU v5p": 459,
    "TPU v5 lite": 197,
    "TPU v6 lite": 918,
    "GAUDI2": 432,
}

FP16_ONLY = {
    "Tesla V100-SXM2-16GB": 125,
    "Tesla V100-SXM2-32GB": 125,
    "Tesla V100-SXM3-32GB": 125,
    "Tesla V100-PCIE-16GB": 112,
    "Tesla V100-PCIE-32GB": 112,
    "Tesla P100-SXM2-16GB": 10.6,
    "Tesla P100-PCIE-16GB": 9.3,
    "Tesla P100-PCIE-12GB": 9.3,
    "Tesla T4": 65,
}

UNKNOWN = [
    # parts of the same number that are other devices
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 5080 Laptop GPU",
    "NVIDIA GeForce RTX 4080 Laptop GPU",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 3080 with Max-Q Design",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D",
    "NVIDIA RTX 6000 Ada Generation Laptop GPU",
    "NVIDIA RTX 5000 Ada Generation Laptop GPU",
    "NVIDIA RTX A5000 Laptop GPU",
    "NVIDIA A100X",
    "NVIDIA A800 40GB Active",
    "NVIDIA H100 80GB HBM2e",
    "NVIDIA H100 64GB HBM2",
    "NVIDIA H800 PCIe",
    "NVIDIA H20-3e",
    "NVIDIA L400",
    "NVIDIA L20",
    "NVIDIA T400",
    "Tesla V100S-PCIE-32GB",
    "Tesla V100-FHHL-16GB",
    # nobody publishes one figure
    "NVIDIA GB10",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "AMD Instinct MI308X",
    # parts of a device
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "GRID A100-40C",
    # too little said
    "NVIDIA GeForce RTX 3080",
    "Intel(R) Data Center GPU Max 1550",
    "AMD Radeon Graphics",
    "Ascend910B",
    "Ascend910_9382",
    "NVIDIA H100",
    "NVIDIA Graphics Device",
    "NVIDIA",
    "cpu",
    "mps",
    "",
    # made up
    "Imaginary 9000",
    "NVIDIA B2000",
    "XH100 PCIe",
    "AMD Instinct MI9000X",
]

# multiply-adds per clock cycle of a multiprocessor, and clock in MHz, that the makers' figures follow from
CLOCKS = {
    r"h100 (80gb hbm3|sxm5?( 80gb)?)": (2048, 1830),
    r"h100 pcie": (2048, 1620),
    r"h100 nvl": (2048, 1545),
    r"a[18]00( (sxm4?|pcie|40gb|80gb))*": (1024, 1410),
    r"a100 sxm4? 64gb": (1024, 1410),
    r"a30": (1024, 1440),
    r"l40s": (512, 2490),
    r"l40": (256, 2490),
    r"l4": (512, 2040),
    r"a40": (512, 1740),
    r"a10g": (256, 1710),
    r"a10": (512, 1695),
    r"rtx a6000": (512, 1800),
    r"rtx a5000": (512, 1695),
    r"rtx 6000 ada generation": (512, 2505),
    r"rtx 5000 ada generation": (512, 2550),
    r"rtx pro 6000 blackwell workstation edition": (512, 2617),
    r"rtx pro 6000 blackwell max q workstation edition": (512, 2288),
    r"rtx 5090": (256, 2407),
    r"rtx 4090": (256, 2520),
    r"rtx 5080": (256, 2617),
    r"rtx 4080 super": (256, 2550),
    r"rtx 4080": (256, 2505),
    r"rtx 3090": (256, 1695),
    r"rtx 3080( 10gb)?": (256, 1710),
    r"rtx 3080( 12gb)?": (256, 1710),
    r"v100 sxm2( (16|32)gb)?": (512, 1530),
    r"v100 sxm3 32gb": (512, 1530),
    r"v100 pcie( (16|32)gb)?": (512, 1380),
    r"p100 sxm2( 16gb)?": (64, 1480),
    r"p100 pcie( (12|16)gb)?": (64, 1303),
    r"t4": (512, 1590),
    r"mi300x( (vf|oam))?": (1024, 2100),
    r"mi300a": (1024, 2100),
    r"mi350x( (vf|oam))?": (2048, 2200),
    r"mi250x( mi250)?": (512, 1700),
    r"(mi250x )?mi250": (512, 1700),
    r"mi210": (512, 1700),
    r"data center gpu max 1550( 1024)?": (256, 1600),
    r"data center gpu max 1550( 896)?": (256, 1600),
    r"data center gpu max 1550( 512)?": (256, 1600),
    r"data center gpu max 1550( 448)?": (256, 1600),
    r"data center gpu max 1100": (256, 1550),
}


def tflops(device, dtype="bfloat16", processors=None):
    found = peaks.lookup(device, processors)
    peak = None if found is None else found.peak_flops_per_second(dtype)
    return None if peak is None else peak / 1e12


def test_enough_devices_are_tried():
    assert len(DENSE_BF16) + len(FP16_ONLY) >= 75


def test_each_clock_is_that_of_a_row():
    assert set(CLOCKS) <= {row.name for row in DEVICES}


@each_row(("device", "dense"), DENSE_BF16.items())
def test_a_device_has_the_dense_peak_of_its_data_sheet(device, dense):
    assert tflops(device) == pytest.approx(dense, rel=0.01)


@each_row(("device", "dense"), FP16_ONLY.items())
def test_a_device_without_bfloat16_has_no_peak_in_it(device, dense):
    assert (tflops(device), tflops(device, "float16")) == (None, dense)


@each_row("device", UNKNOWN)
def test_a_device_that_is_not_known_has_no_peak(device):
    assert peaks.lookup(device) is None


def test_what_to_do_about_a_device_that_is_not_known_is_one_sentence():
    assert peaks.advice("Imaginary 9000") == (
        "No dense peak is known for 'Imaginary 9000': set peak_tflops to the dense TFLOPS of its data sheet, "
        'such as "989.5" or "bf16=989.5,fp32=67", or have it measured by measure_peak="on".'
    )


@pytest.mark.parametrize("device", ["nvidia h100 80gb hbm3", "NVIDIA-H100-80GB-HBM3", " NVIDIA H100 80GB HBM3 "])
def test_case_and_separators_do_not_matter(device):
    assert tflops(device) == 989.5


def test_a_peak_of_four_bits_is_known_under_its_names_in_torch():
    dense = {"NVIDIA GB300": 15000, "NVIDIA GB200": 10000, "NVIDIA B300 SXM6 AC": 13125, "NVIDIA B200": 9000}
    for name in ("fp4", "float4_e2m1fn_x2"):
        assert {device: tflops(device, name) for device in dense} == dense
    assert tflops("NVIDIA H200", "fp4") is None
    assert (tflops("NVIDIA B200", "fp32"), tflops("NVIDIA GB200", "fp32")) == (75, 80)
    assert PerfConfig(peak_tflops="fp4=9000").peak_tflops == "fp4=9000"


@pytest.mark.parametrize(("processors", "dense"), [(110, 191.5), (104, 181), (None, None), (38, None)])
def test_of_two_devices_with_one_name_the_multiprocessors_tell_which(processors, dense):
    assert tflops("AMD Instinct MI250X / MI250", processors=processors) == dense


@each_row(
    ("device", "processors", "dense"),
    [
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
def test_devices_of_one_name_differ_by_their_multiprocessors(device, processors, dense):
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


def test_an_architecture_changes_nothing_for_a_device_with_a_name():
    assert peaks.lookup("NVIDIA L4", 58, "NVIDIA L4") == peaks.lookup("NVIDIA L4")
    assert peaks.lookup("AMD Radeon RX 7900 XTX", 304, "gfx942") is None


def test_matrix_cores_multiply_float32_twice_as_fast_as_vector_units():
    assert [tflops(f"AMD Instinct {name}", "float32") for name in ("MI250X", "MI250", "MI210")] == [47.9, 45.3, 45.3]


@pytest.mark.parametrize(("processors", "dense"), [(304, 1307), (38, None), (None, 1307)])
def test_a_partition_is_not_taken_for_the_whole(processors, dense):
    assert tflops("AMD Instinct MI300X", processors=processors) == dense


def test_no_name_leads_to_two_devices_but_that_one():
    names = [*DENSE_BF16, *FP16_ONLY]
    counts = {name: sum(1 for row in DEVICES if re.fullmatch(row.name, peaks._name(name))) for name in names}
    assert set(counts.values()) == {1}


def test_every_row_says_where_it_is_from():
    assert all(len(row.source) > 10 for row in DEVICES)
    assert len({row.name for row in DEVICES}) == len(DEVICES)


@each_row("row", [row for row in DEVICES if row.name in CLOCKS])
def test_a_published_peak_follows_from_multiprocessors_and_clock(row):
    multiply_adds, mhz = CLOCKS[row.name]
    derived = 2 * multiply_adds * row.processors * mhz * 1e6  # a multiply-add is two FLOPs
    assert derived / 1e12 == pytest.approx(row.tflops.get("bfloat16", row.tflops["float16"]), rel=0.01)


@each_row("row", DEVICES)
def test_smaller_numbers_are_never_slower(row):
    order = [row.tflops[dtype] for dtype in ("float32", "tfloat32", "float16", "float8") if dtype in row.tflops]
    assert order == sorted(order)


@each_row("row", DEVICES)
def test_the_name_of_a_row_is_one_that_leads_to_it(row):
    assert [one for one in DEVICES if re.fullmatch(one.name, peaks._name(row.called))] == [row]


@each_row("row", DEVICES)
def test_a_slice_of_a_gpu_is_known_by_its_multiprocessors_and_has_no_peak(row):
    if row.processors is None:
        return
    assert peaks.lookup(row.called, row.processors).by_dtype
    assert peaks.lookup(row.called, row.processors // 7) is None
    assert peaks.lookup(row.called, row.processors - 2) is None
    assert peaks.lookup(f"{row.called} MIG 1g.10gb") is None


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


def test_one_number_holds_for_whatever_dtype():
    peak = peaks.given("989.5")
    assert [peak.peak_flops_per_second(dtype) for dtype in ("bfloat16", "float32")] == [989.5e12] * 2
    assert (peak.source, peak.measured) == ("peak_tflops=989.5", False)


def test_by_dtype_the_others_stay_unknown():
    peak = peaks.given("bf16=989.5,fp32=67")
    assert peak.by_dtype == {"bfloat16": 989.5e12, "float32": 67e12}
    assert peak.peak_flops_per_second("float16") is None


@each_row("dtype", [*DTYPES, *DTYPES.values()])
def test_what_the_configuration_takes_is_understood(dtype):
    text = PerfConfig(peak_tflops=f"{dtype}=2.5").peak_tflops
    assert peaks.given(text).by_dtype == {DTYPES.get(dtype, dtype): 2.5e12}


def test_a_dtype_that_does_not_exist_is_refused_at_once():
    with pytest.raises(ConfigError):
        PerfConfig(peak_tflops="bf17=989.5")


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


def test_torch_names_lead_to_the_peak():
    peak = Peaks({"bfloat16": 2.0, "float8": 4.0}, "example")
    found = [peak.peak_flops_per_second(name) for name in ("torch.bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")]
    assert found == [2.0, 4.0, 4.0, None]


def test_the_ideal_time_adds_up_dtype_by_dtype():
    peak = Peaks({"bfloat16": 4e12, "float32": 1e12}, "example")
    assert peaks.ideal_seconds({"bfloat16": 8e12, "float32": 1e12}, peak) == 3.0
    assert peaks.ideal_seconds({}, peak) == 0.0


def test_a_dtype_without_a_peak_spoils_the_ideal_time_only_with_work():
    peak = Peaks({"bfloat16": 4e12}, "example")
    assert peaks.ideal_seconds({"bfloat16": 8e12, "float32": 0}, peak) == 2.0
    assert peaks.ideal_seconds({"bfloat16": 8e12, "float32": 1}, peak) is None
