{{/*
A PodMonitor, a whole manifest. Besides the dict of _config.tpl: monitor (values: interval, scrapeTimeout, labels, relabelings,
metricRelabelings, tlsConfig), https (true with http.tls), selectorLabels (a map), labels (a map), native.
*/}}
{{- define "retry-sidecar.podMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "retry-sidecar.name" . }}
  namespace: {{ include "retry-sidecar.namespace" . }}
  labels:
    {{- toYaml (merge (dict) (.monitor.labels | default dict) (.labels | default dict)) | nindent 4 }}
spec:
  selector:
    matchLabels:
      {{- toYaml .selectorLabels | nindent 6 }}
  podMetricsEndpoints:
    - port: {{ include "retry-sidecar.portName" . }}
      {{- include "retry-sidecar.endpoint" (dict "monitor" .monitor "https" .https) | nindent 6 }}
{{- end -}}

{{/* Common to PodMonitor and ServiceMonitor: both set the job name that the alerts expect. */}}
{{- define "retry-sidecar.endpoint" -}}
{{- $https := .https -}}
{{- with .monitor -}}
path: /metrics
{{- if $https }}
scheme: https
{{- with .tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
interval: {{ .interval }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
relabelings:
  - targetLabel: job
    replacement: retry-sidecar
  {{- with .relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}
