"""Wrong values are refused before anything is installed, and the message says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.chart_schema import SET_BY_THE_CHART
from tests.deploy.charts import APPLICATION, CASES, EXAMPLE, Helm, RenderFailed

DEFAULT = next(path for path in CASES if path.stem == "default-values")


@pytest.mark.parametrize(
    ("chart", "values", "said"),
    [
        (APPLICATION, ["config.bootstrap_servers=k:9092"], "    config.origin_topics: [orders, payments]\n"),
        (APPLICATION, ["config.origin_topics=orders"], "config.bootstrap_servers is not set: name the Kafka brokers"),
        (
            EXAMPLE,
            ["retrySidecar.config.origin_topics=null"],
            "    retrySidecar.config.origin_topics: [orders, payments]\n",
        ),
    ],
    ids=["origins", "brokers", "library"],
)
def test_what_has_no_default_is_asked_for(helm: Helm, chart: Path, values: list[str], said: str) -> None:
    with pytest.raises(RenderFailed) as failure:
        helm.render(chart, values=values)
    assert said in str(failure.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("config.orgin_topics=orders", "at '/config': additional properties 'orgin_topics' not allowed"),
        ("config.create_topics=maybe", "at '/config/create_topics': got string, want null or boolean"),
        ("config.delays=abc", "at '/config/delays': 'abc' does not match pattern"),
        ("config.max_delay=36501d", "at '/config/max_delay': '36501d' does not match pattern"),
        ("config.origin_topics=a/b", "at '/config/origin_topics': 'a/b' does not match pattern"),
        ("config.commit_max_messages=0", "at '/config/commit_max_messages': minimum: got 0, want 1"),
        ("config.backoff.first=1s", "at '/config/backoff': missing property 'attempts'"),
        (
            "config.origin_policies.orders.jitter=2",
            "at '/config/origin_policies/orders/jitter': maximum: got 2, want 1",
        ),
        ("topics.manage=yes", "at '/topics/manage': value must be one of 'none', 'job', 'strimzi'"),
        ("topics.partitions=0", "at '/topics/partitions': minimum: got 0, want 1"),
        ("topics.job.backoffLimit=-1", "at '/topics/job/backoffLimit': minimum: got -1, want 0"),
        ("topics.job.kafka.sasl.mechanism=PLAIN", "at '/topics/job/kafka/sasl': additional properties 'mechanism'"),
        ("topics.strimzi.apiVersion=v1", "must be one of 'kafka.strimzi.io/v1', 'kafka.strimzi.io/v1beta2'"),
        ("topics.strimzi.cluster=My", "at '/topics/strimzi/cluster': 'My' does not match pattern"),
        ("topics.strimzi.maxMessageBytes=1Mi", "at '/topics/strimzi/maxMessageBytes': got string, want integer"),
        ("test.topic=a/b", "at '/test/topic': 'a/b' does not match pattern"),
        ("test.timeoutSeconds=0", "at '/test/timeoutSeconds': minimum: got 0, want 1"),
        ("ingress.hosts={http://a}", "at '/ingress/hosts/0': 'http://a' does not match pattern"),
        ("httpRoute.parentRefs[0].namespace=x", "at '/httpRoute/parentRefs/0': missing property 'name'"),
        ("namespaceOverride=Shop", "at '/namespaceOverride': 'Shop' does not match pattern"),
        ("global.imageRegistry=http://r", "at '/global/imageRegistry': 'http://r' does not match pattern"),
        ("image.registry=r/", "at '/image/registry': 'r/' does not match pattern"),
        ("prometheusRule.runbookUrl=docs", "at '/prometheusRule/runbookUrl': 'docs' does not match pattern"),
        ("service.labels.a=1", "at '/service/labels/a': got number, want string"),
        ("config.streams_app_id=", "at '/config/streams_app_id': minLength: got 0, want 1"),
        ("config.client.client.id=", "at '/config/client/client': got object"),
        ("config.commit_interval_ms.a=1", "at '/config/commit_interval_ms': got object"),
        ("replicaCount=two", "at '/replicaCount': got string, want integer"),
        ("image.pullPolicy=never", "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("image.digest=latest", "at '/image/digest': 'latest' does not match pattern"),
        ("http.port=123456", "at '/http/port': maximum: got 123,456, want 65,535"),
        ("persistance.enabled=false", "additional properties 'persistance' not allowed"),
        ("podMonitor.enable=true", "at '/podMonitor': additional properties 'enable' not allowed"),
        ("livenessProbe.httpGet.path=/", "at '/livenessProbe': additional properties 'httpGet' not allowed"),
        ("persistence.size=much", "at '/persistence/size': 'much' does not match pattern"),
        ("config.client.Security_Protocol=SSL", "'Security_Protocol' does not match pattern"),
    ],
    ids=lambda text: text.partition("=")[0].split(" ")[0],
)
def test_the_schema_names_the_value_and_what_is_wrong_with_it(helm: Helm, value: str, said: str) -> None:
    with pytest.raises(RenderFailed) as failure:
        helm.render(APPLICATION, DEFAULT, values=[value])
    assert said in str(failure.value)


@pytest.mark.parametrize("setting", SET_BY_THE_CHART)
def test_what_the_chart_sets_itself_is_no_value_of_config(helm: Helm, setting: str) -> None:
    with pytest.raises(RenderFailed, match=f"additional properties '{setting.lower()}' not allowed"):
        helm.render(APPLICATION, DEFAULT, values=[f"config.{setting.lower()}=x"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["kafka.sasl.mechanism=PLAIN"], "kafka.sasl.existingSecret is not set, but kafka.sasl.mechanism is PLAIN"),
        (["kafka.sasl.mechanism=PLAIN", "kafka.sasl.existingSecret=s"], "kafka.sasl.username is not set"),
        (["kafka.sasl.username=me"], "kafka.sasl.mechanism is not set, but other values of kafka.sasl are"),
        (["kafka.tls.ca.existingSecret=ca"], "kafka.tls.enabled is false, but a secret of kafka.tls is named"),
        (["podMonitor.enabled=true", "serviceMonitor.enabled=true"], "each instance would be counted twice"),
        (["terminationGracePeriodSeconds=30"], "with shutdownTimeoutSeconds 20 it must be 35 at least"),
        (["prometheusRule.enabled=true", "prometheusRule.disabled={Nothing}"], "there is no such alert, there are"),
    ],
    ids=lambda each: each[-1].partition("=")[0] if isinstance(each, list) else "",
)
def test_values_that_contradict_each_other_are_refused(helm: Helm, values: list[str], said: str) -> None:
    with pytest.raises(RenderFailed) as failure:
        helm.render(APPLICATION, DEFAULT, values=values)
    assert said in str(failure.value)


def test_an_old_cluster_learns_that_it_has_no_native_sidecars(helm: Helm) -> None:
    with pytest.raises(RenderFailed, match=r"1\.29"):
        helm.render(EXAMPLE, kubernetes="1.28")
