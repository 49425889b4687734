{{/*
Every template here takes one dict:
  root    the importing chart's $
  values  values with the names of this chart's values.yaml
  name    base of object names; default: the release's name with "-retry-sidecar"
  namespace  namespace of the objects; default: the release's
  configMap  name of the ConfigMap; default: the base of object names with "-config"
  path    prefix of the values in the importing chart, for messages: "retrySidecar."; default: empty
*/}}

{{- define "retry-sidecar.name" -}}
{{- default (printf "%s-retry-sidecar" .root.Release.Name | trunc 50 | trimSuffix "-") .name -}}
{{- end -}}

{{- define "retry-sidecar.namespace" -}}
{{ default .root.Release.Namespace .namespace }}
{{- end -}}

{{- define "retry-sidecar.configMapName" -}}
{{ default (printf "%s-config" (include "retry-sidecar.name" .)) .configMap }}
{{- end -}}

{{/* The settings as YAML: the user's, and those derived from `kafka`. A property in config.client wins. */}}
{{- define "retry-sidecar.config" -}}
{{- include "retry-sidecar.check" . -}}
{{- $kafka := .values.kafka -}}
{{- $client := dict -}}
{{- $protocol := ternary "SSL" "PLAINTEXT" $kafka.tls.enabled -}}
{{- if $kafka.sasl.mechanism -}}
{{- $protocol = printf "SASL_%s" $protocol -}}
{{- $_ := set $client "sasl.mechanism" $kafka.sasl.mechanism -}}
{{- end -}}
{{- if ne $protocol "PLAINTEXT" -}}
{{- $_ := set $client "security.protocol" $protocol -}}
{{- end -}}
{{- if and $kafka.tls.enabled $kafka.tls.ca.existingSecret -}}
{{- $_ := set $client "ssl.ca.location" (printf "/etc/retry-sidecar/ca/%s" $kafka.tls.ca.key) -}}
{{- end -}}
{{- if and $kafka.tls.enabled $kafka.tls.client.existingSecret -}}
{{- $_ := set $client "ssl.certificate.location" (printf "/etc/retry-sidecar/client/%s" $kafka.tls.client.certificateKey) -}}
{{- $_ := set $client "ssl.key.location" (printf "/etc/retry-sidecar/client/%s" $kafka.tls.client.privateKeyKey) -}}
{{- end -}}
{{- $config := dict -}}
{{- range $name, $value := omit .values.config "client" -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $config $name $value -}}
{{- end -}}
{{- end -}}
{{- $client = merge (dict) (.values.config.client | default dict) $client -}}
{{- if $client -}}
{{- $config = merge (dict "client" $client) $config -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{/* Stops the rendering with a message that names the value to set. Renders nothing when all values are valid. */}}
{{- define "retry-sidecar.check" -}}
{{- $path := default "" .path -}}
{{- $values := .values -}}
{{- if not $values.config.origin_topics -}}
{{- fail (printf "\n\n%sconfig.origin_topics is not set: list the topics that messages may be delivered to, such as\n\n    %sconfig.origin_topics: [orders, payments]\n\nEvery user who may write to the retry topic can send messages to these topics, so there is no default.\n" $path $path) -}}
{{- end -}}
{{- if not $values.config.bootstrap_servers -}}
{{- fail (printf "\n\n%sconfig.bootstrap_servers is not set: name the Kafka brokers, such as\n\n    %sconfig.bootstrap_servers: my-cluster-kafka-bootstrap:9092\n" $path $path) -}}
{{- end -}}
{{- with $values.kafka.sasl -}}
{{- if .mechanism -}}
{{- if not .existingSecret -}}
{{- fail (printf "\n\n%skafka.sasl.existingSecret is not set, but kafka.sasl.mechanism is %s: name the secret that holds the password\n" $path .mechanism) -}}
{{- end -}}
{{- if not (or .username .usernameKey) -}}
{{- fail (printf "\n\n%skafka.sasl.username is not set, but kafka.sasl.mechanism is %s: name the user, or the key of the secret that holds it in kafka.sasl.usernameKey\n" $path .mechanism) -}}
{{- end -}}
{{- else if or .username .existingSecret .usernameKey -}}
{{- fail (printf "\n\n%skafka.sasl.mechanism is not set, but other values of kafka.sasl are: set it to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or what your brokers require\n" $path) -}}
{{- end -}}
{{- end -}}
{{- with $values.kafka.tls -}}
{{- if and (not .enabled) (or .ca.existingSecret .client.existingSecret) -}}
{{- fail (printf "\n\n%skafka.tls.enabled is false, but a secret of kafka.tls is named: set it to true\n" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The ConfigMap, a whole manifest. `labels` and `annotations` (maps) are optional. */}}
{{- define "retry-sidecar.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "retry-sidecar.configMapName" . }}
  namespace: {{ include "retry-sidecar.namespace" . }}
  {{- with .labels }}
  labels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
data:
  config.yaml: |
    {{- include "retry-sidecar.config" . | nindent 4 }}
{{- end -}}

{{/* Annotations for the pod template: a change of the settings rolls the pods. */}}
{{- define "retry-sidecar.podAnnotations" -}}
checksum/retry-sidecar-config: {{ include "retry-sidecar.config" . | sha256sum }}
{{- end -}}
