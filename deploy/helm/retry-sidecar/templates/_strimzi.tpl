{{- define "app.strimziCheck" -}}
{{- if not .Values.topics.strimzi.cluster -}}
{{- fail "\n\ntopics.strimzi.cluster is not set, but topics.manage is strimzi: name the Kafka resource of Strimzi, such as\n\n    topics.strimzi.cluster: my-cluster\n" -}}
{{- end -}}
{{- end -}}

{{/* The KafkaUser of the sidecar: Strimzi's secret has the same name. */}}
{{- define "app.strimziUser" -}}
{{- include "app.strimziCheck" . -}}
{{- $kafka := .Values.kafka -}}
{{- if $kafka.sasl.mechanism -}}
{{- if ne $kafka.sasl.mechanism "SCRAM-SHA-512" -}}
{{- fail (printf "\n\nkafka.sasl.mechanism is %s, but topics.strimzi.users is true: a KafkaUser logs in with SCRAM-SHA-512 or with a certificate (kafka.tls.client.existingSecret); set one of them, or set topics.strimzi.users to false\n" $kafka.sasl.mechanism) -}}
{{- end -}}
{{- if ne $kafka.sasl.existingSecret (default $kafka.sasl.existingSecret $kafka.sasl.username) -}}
{{- fail (printf "\n\nkafka.sasl.username is %s and kafka.sasl.existingSecret is %s, but topics.strimzi.users is true: Strimzi gives the secret the name of the KafkaUser, so they must be equal\n" $kafka.sasl.username $kafka.sasl.existingSecret) -}}
{{- end -}}
{{- if $kafka.sasl.usernameKey -}}
{{- fail "\n\nkafka.sasl.usernameKey is set, but topics.strimzi.users is true: Strimzi's secret has no user name; set kafka.sasl.username to the name of the secret\n" -}}
{{- end -}}
{{ $kafka.sasl.existingSecret }}
{{- else if $kafka.tls.client.existingSecret -}}
{{ $kafka.tls.client.existingSecret }}
{{- else -}}
{{- fail "\n\ntopics.strimzi.users is true, but kafka has no login: set kafka.sasl.mechanism to SCRAM-SHA-512, and kafka.sasl.username and kafka.sasl.existingSecret to the name of the KafkaUser; or set kafka.tls.client.existingSecret to that name; or set topics.strimzi.users to false\n" -}}
{{- end -}}
{{- end -}}

{{/* Name of the KafkaTopic of a topic: the topic's own where Kubernetes allows it. */}}
{{- define "app.strimziTopicName" -}}
{{- if regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" . -}}
{{ . }}
{{- else -}}
topic-{{ regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trunc 200 | trimAll "-" }}-{{ sha256sum . | trunc 8 }}
{{- end -}}
{{- end -}}

{{/* Metadata of a KafkaTopic or KafkaUser: root, name. */}}
{{- define "app.strimziMetadata" -}}
{{- $strimzi := .root.Values.topics.strimzi -}}
name: {{ .name }}
namespace: {{ $strimzi.namespace | default (include "app.namespace" .root) }}
labels:
  {{- include "app.labels" .root | nindent 2 }}
  strimzi.io/cluster: {{ $strimzi.cluster }}
{{- end -}}

{{/* One rule of a KafkaUser, as a list item: type, name, prefix (true or false), operations. */}}
{{- define "app.strimziAcl" -}}
- resource:
    type: {{ .type }}
    name: {{ .name | quote }}
    patternType: {{ ternary "prefix" "literal" (default false .prefix) }}
  operations: {{ toJson .operations }}
{{- end -}}

{{/* A rule for each origin, which may be a topic, a prefix with `*` at its end, or `*`. */}}
{{- define "app.strimziOriginAcls" -}}
{{- $origins := .Values.config.origin_topics -}}
{{- if not (kindIs "slice" $origins) -}}
{{- $origins = splitList "," (toString $origins) -}}
{{- end -}}
{{- with include "app.testTopic" . -}}
{{- $origins = append $origins . -}}
{{- end -}}
{{- range $origin := uniq $origins -}}
{{- $origin = trim (toString $origin) -}}
{{- $prefix := and (ne $origin "*") (hasSuffix "*" $origin) -}}
{{- $name := ternary (trimSuffix "*" $origin) $origin $prefix -}}
{{- if regexMatch "[*?\\[]" (ternary "" $name (eq $origin "*")) -}}
{{- fail (printf "\n\nconfig.origin_topics has %s, which no ACL of Kafka can say: list the topics, use a prefix such as orders-*, or set topics.strimzi.users to false\n" $origin) -}}
{{- end }}
{{ include "app.strimziAcl" (dict "type" "topic" "name" $name "prefix" $prefix "operations" (list "Write" "DescribeConfigs")) }}
{{- end -}}
{{- end -}}
