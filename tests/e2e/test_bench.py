"""`tandem bench`: what it prints is what benchmarks/ and users' scripts read. Speeds are not judged here."""
import json
import subprocess

from conftest import BINARY, MODEL


def bench(*flags):
    return subprocess.run([BINARY, "bench", *flags], capture_output=True, text=True, timeout=120)


def test_engine_prints_one_json_line_for_each_test():
    done = bench("engine", "--model", MODEL, "--threads", "1,2", "--prompt", "33", "--decode", "3", "--depth", "0,20",
                 "--sequences", "1,3", "--repeat", "2", "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    one = [("prefill", 33, 0, 1), ("decode", 0, 0, 1), ("decode", 0, 0, 3), ("decode", 0, 20, 1), ("decode", 0, 20, 3)]
    want = [(threads, *test) for threads in (1, 2) for test in one]
    assert [(l["threads"], l["test"], l["prompt"], l["depth"], l["sequences"]) for l in lines] == want
    for line in lines:
        rate = line["tokens_per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]


def test_engine_prints_a_table():
    done = bench("engine", "--model", MODEL, "--threads", "1", "--prompt", "8", "--decode", "0", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    heading, line = done.stdout.splitlines()
    assert heading.split()[:5] == ["test", "threads", "prompt", "depth", "sequences"]
    assert line.split()[:5] == ["prefill", "1", "8", "-", "1"]


def test_kernels_prints_the_limits_and_each_op():
    done = bench("kernels", "--isa", "avx2", "--threads", "1", "--op", "rms_norm,kv_write", "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    limits, *ops = [json.loads(line) for line in done.stdout.splitlines()]
    assert limits["limits"] == "avx2" and limits["memory_gbps"] > 0 and limits["int8_gops"] > limits["f32_gops"] > 0
    assert {op["op"] for op in ops} == {"rms_norm", "kv_write"}
    assert all(op["gbps"] > 0 and op["us"]["min"] > 0 for op in ops)


def test_pool_prints_the_ledger_beside_the_mutex():
    flags = ["pool", "--blocks", "600", "--lease", "1,32", "--used", "0,50", "--processes", "1,2", "--repeat", "2"]
    done = bench(*flags, "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    want = [(used, processes, n) for used in (0, 50) for processes in (1, 2) for n in (1, 32)]
    assert [(l["percent_used"], l["processes"], l["lease_blocks"]) for l in lines] == want
    for line in lines:
        for ns in (line["ledger_ns_per_block"], line["mutex_ns_per_block"]):
            assert 0 < ns["min"] <= ns["median"] <= ns["max"]
    done = bench(*flags)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 9
    done = bench("pool", "--blocks", "100", "--used", "90")
    assert done.returncode == 2 and done.stdout.count("\n") == 1 and "ask for more blocks" in done.stderr


def test_wrong_flags_are_refused():
    for flags in (["kernels", "--op", "softmax"], ["engine", "--isa", "sse2"], ["engine", "--sequences", "0"],
                  ["pool", "--processes", "3"], ["disk"]):
        done = bench(*flags)
        assert done.returncode == 2 and done.stdout == "" and done.stderr, flags
    done = bench("engine", "--model", "/nowhere/model.gguf")
    assert done.returncode == 1 and "/nowhere/model.gguf" in done.stderr
