"""Buffer sizes as both engines print them, summed by use."""

from __future__ import annotations

from cook.engines.tool_output import parse_buffers

MIB = 1 << 20


def test_mainline_s_buffers_of_two_devices_are_summed() -> None:
    log = b"""\
load_tensors:   CPU_Mapped model buffer size =   123.50 MiB
load_tensors:        CUDA0 model buffer size =  1000.25 MiB
llama_context:        CPU  output buffer size =     0.50 MiB
llama_kv_cache:      CUDA0 KV buffer size =    48.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =     2.00 MiB
sched_reserve:      CUDA0 compute buffer size =    10.00 MiB
"""
    sizes, on_devices = parse_buffers(log)
    assert sizes == {
        "model": int(1123.75 * MIB),
        "output": MIB // 2,
        "KV": 48 * MIB,
        "RS": 2 * MIB,
        "compute": 10 * MIB,
    }
    assert on_devices == int(1060.25 * MIB), "CUDA0's alone"


def test_memory_of_the_host_that_a_device_reads_is_the_hosts() -> None:
    log = b"""load_tensors:    CUDA_Host model buffer size =   100.00 MiB
llama_context:  CUDA_Host  output buffer size =     4.00 MiB
llama_kv_cache:      CUDA1 KV buffer size =    48.00 MiB
"""
    sizes, on_devices = parse_buffers(log)
    assert sum(sizes.values()) == 152 * MIB
    assert on_devices == 48 * MIB


def test_ik_names_no_use_of_its_weights() -> None:
    log = b"llm_load_tensors:        CPU buffer size =    87.00 MiB\n"
    assert parse_buffers(log) == ({"model": 87 * MIB}, 0)


def test_other_lines_are_no_buffers() -> None:
    log = b"CPU buffer size = 5.00 MiB\nprompt cache size = 8192.000 MiB\nload_tensors: done\n"
    assert parse_buffers(log) == ({}, 0)
