"""Which instances are taken for healthy, and what /health, /metrics and /v1/models say."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("aiohttp")

from instances import PREFILL, Instance, NobodyIsUp, Pool
from proxy_cluster import Cluster, becomes, run


def test_one_failed_check_does_not_count() -> None:
    async def main() -> None:
        instance = Instance(PREFILL, "http://a")
        assert not instance.healthy
        instance.checked(True)
        instance.checked(False)
        assert instance.healthy and not instance.down.is_set()
        instance.checked(True)
        instance.checked(False)
        assert instance.healthy
        instance.checked(False)
        assert not instance.healthy and instance.down.is_set()
        instance.checked(True)
        assert instance.healthy and not instance.down.is_set()

    asyncio.run(main())


def test_a_connection_that_cannot_be_made_counts_at_once() -> None:
    async def main() -> None:
        instance = Instance(PREFILL, "http://a")
        instance.checked(True)
        instance.unreachable()
        # What it is computing may well be finished: only its checks say that it is down.
        assert not instance.healthy and not instance.down.is_set()
        instance.checked(True)
        assert instance.healthy

    asyncio.run(main())


def test_who_is_chosen() -> None:
    async def main() -> None:
        pool = Pool(PREFILL, ["http://a", "http://b", "http://c"])
        with pytest.raises(NobodyIsUp, match="no prefill instance is up"):
            pool.choose()
        a, b, c = pool.instances
        for instance in pool.instances:
            instance.checked(True)
        assert [pool.choose() for _ in range(4)] == [a, b, c, a]
        b.in_flight = 2
        assert [pool.choose() for _ in range(3)] == [c, a, c]
        assert pool.choose({a, c}) is b
        b.unreachable()
        assert pool.choose({a}) is c
        assert pool.choose({a, c}) in (a, c)  # rather than nobody

    asyncio.run(main())


def test_health_says_which_instances_are_up() -> None:
    async def main(cluster: Cluster) -> None:
        said = await cluster.get("/health")
        assert said.status == 200
        up = {"healthy": True, "in_flight": 0}
        assert said.json == {
            "status": "ok",
            "prefill": [{"url": each.url} | up for each in cluster.prefills],
            "decode": [{"url": each.url} | up for each in cluster.decodes],
        }

    run(main, 2, 1)


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_one_of_each_is_enough_and_needed(stage: str) -> None:
    async def main(cluster: Cluster) -> None:
        fakes = cluster.prefills if stage == "prefill" else cluster.decodes
        pool = cluster.proxy.prefills if stage == "prefill" else cluster.proxy.decodes
        fakes[0].healthy = False
        await becomes(lambda: not pool.instances[0].healthy)
        said = await cluster.get("/health")
        assert said.status == 200
        assert [each["healthy"] for each in said.json[stage]] == [False, True]
        assert (await cluster.post()).status == 200
        assert fakes[0].asked == []

        for fake in cluster.prefills:
            fake.asked.clear()
        fakes[1].healthy = False
        await becomes(lambda: not pool.any_is_up())
        assert (await cluster.get("/health")).status == 503
        answer = await cluster.post()
        assert answer.status == 503
        assert answer.error.startswith(f"No {stage} instance is up.")
        assert all(fake.asked == [] for fake in cluster.prefills)

        fakes[0].healthy = True
        await becomes(pool.any_is_up)
        assert (await cluster.post()).status == 200

    run(main, 2, 2)


def test_an_instance_that_comes_back_is_used_again() -> None:
    async def main(cluster: Cluster) -> None:
        prefill, pool = cluster.prefills[0], cluster.proxy.prefills
        await prefill.stop()
        answer = await cluster.post()
        # What failed, and not only that nobody is left.
        assert answer.status == 502 and "cannot be connected to" in answer.error
        assert not pool.any_is_up()
        await prefill.start()
        await becomes(pool.any_is_up)
        assert (await cluster.post()).status == 200

    run(main)


def test_what_is_known_for_a_push_is_forgotten_when_an_instance_is_out() -> None:
    async def main(cluster: Cluster) -> None:
        prefill, pool = cluster.prefills[0], cluster.proxy.prefills
        await cluster.post()
        await prefill.stop()
        await becomes(lambda: not pool.any_is_up())
        prefill.life = 2
        await prefill.start()
        await becomes(pool.any_is_up)
        await cluster.post()
        assert len(cluster.decodes[0].asked) == 2
        assert cluster.decodes[0].asked[1].params["kvxfer"]["workers"] == prefill.workers

    run(main, 1, 1, "--mode", "push")


def test_models_are_those_of_a_decode_instance() -> None:
    async def main(cluster: Cluster) -> None:
        answer = await cluster.get("/v1/models", {"Authorization": "Bearer k"})
        assert answer.json["data"] == [{"id": "decode-0", "by": "Bearer k"}]
        await cluster.decodes[0].stop()
        await becomes(lambda: not cluster.proxy.decodes.any_is_up())
        answer = await cluster.get("/v1/models")
        assert answer.status == 503 and "decode" in answer.error

    run(main)


def test_metrics_are_prometheus_text() -> None:
    async def main(cluster: Cluster) -> None:
        for _ in range(3):
            await cluster.post()
        waiting = asyncio.ensure_future(cluster.post())
        cluster.decodes[0].goes_on.clear()
        await becomes(lambda: len(cluster.decodes[0].asked) == 4)
        said = await cluster.get("/metrics")
        assert said.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = said.text.splitlines()
        path = 'path="/v1/completions"'
        assert f'kvxfer_proxy_requests_total{{{path},status="200"}} 3' in lines
        assert "kvxfer_proxy_in_flight 1" in lines
        assert "# TYPE kvxfer_proxy_failures_total counter" in lines
        where = f'{{stage="decode",instance="{cluster.decodes[0].url}"}}'
        assert f"kvxfer_proxy_instance_in_flight{where} 1" in lines
        assert f"kvxfer_proxy_instance_up{where} 1" in lines
        cluster.decodes[0].goes_on.set()
        await waiting

    run(main)
