"""The same seeded requests give the same tokens in every placement, alone and all at once."""
import concurrent.futures

from conftest import Server

WORDS = "river stone light market garden engine winter letter mountain paper".split()


def requests():
    """40 of them: short and long prompts, greedy and sampled, with and without penalties."""
    for n in range(40):
        prompt = " ".join(WORDS[(n * 7 + i * 3) % len(WORDS)] for i in range(3 + (n * 37) % 400))
        body = {"prompt": prompt, "max_tokens": 12 + n % 20, "seed": 1000 + n, "temperature": (n % 4) * 0.4}
        if n % 3 == 0:
            body["top_p"] = 0.9
        if n % 5 == 0:
            body |= {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1}
        if n % 7 == 0:
            body |= {"top_k": 20, "min_p": 0.05}
        yield body | {"logprobs": 1, "ignore_eos": True}


def run(server, body):
    reply = server.post("/v1/completions", body, timeout=300)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_40_requests_are_the_same_bytes_in_both_placements_alone_and_together():
    bodies = list(requests())
    outcomes = {}
    for placement in ("semi", "fused"):
        with Server("--placement", placement) as server:
            outcomes[placement, "alone"] = [run(server, body) for body in bodies]
            with concurrent.futures.ThreadPoolExecutor(40) as pool:
                outcomes[placement, "together"] = list(pool.map(lambda body: run(server, body), bodies))
            assert server.stop() == 0
    reference = outcomes["semi", "alone"]
    for how, outcome in outcomes.items():
        assert outcome == reference, f"{how} differs from semi alone"


def test_chunk_size_threads_a_tiny_pool_and_look_ahead_change_nothing():
    bodies = list(requests())[:12]
    outcomes = []
    for flags in ([], ["--prefill-chunk-tokens", "48"], ["--threads", "1"], ["--kv-cache-tokens", "1200"],
                  ["--look-ahead-steps", "0"], ["--look-ahead-steps", "4"]):
        with Server(*flags) as server:
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                outcomes.append(list(pool.map(lambda body: run(server, body), bodies)))
            assert server.stop() == 0
    assert all(outcome == outcomes[0] for outcome in outcomes)
