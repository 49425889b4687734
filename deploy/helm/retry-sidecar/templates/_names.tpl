{{- define "app.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "app.namespace" -}}
{{ default .Release.Namespace .Values.namespaceOverride }}
{{- end -}}

{{- define "app.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "app.labels" -}}
{{ include "app.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "app.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "app.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* The topic that `helm test` sends a message to; empty: it sends none. */}}
{{- define "app.testTopic" -}}
{{- if .Values.test.topic -}}
{{ .Values.test.topic }}
{{- else if ne .Values.topics.manage "none" -}}
{{ .Values.config.input_topic | default "retry" }}-test
{{- end -}}
{{- end -}}

{{/* What the library's templates take, as JSON. Without a claim of its own the pod's state is an emptyDir. */}}
{{- define "app.sidecar" -}}
{{- $values := .Values -}}
{{- if or (not .Values.persistence.enabled) (eq .Values.engine "spark") -}}
{{- $values = merge (dict "state" (dict "sizeLimit" .Values.persistence.size)) .Values -}}
{{- end -}}
{{- $topic := include "app.testTopic" . -}}
{{- with .Values.config.origin_topics -}}
{{- if and $topic (kindIs "slice" .) -}}
{{- $values = merge (dict "config" (dict "origin_topics" (append . $topic))) $values -}}
{{- else if $topic -}}
{{- $values = merge (dict "config" (dict "origin_topics" (printf "%v,%s" . $topic))) $values -}}
{{- end -}}
{{- end -}}
{{- dict "values" $values "name" (include "app.fullname" .) "namespace" (include "app.namespace" .) | toJson -}}
{{- end -}}

{{/*
The same for a pod of a hook with a login of its own, which runs while the release's ConfigMap may not be there.
  root      $
  name      end of the names of its objects
  kafka     the login: tls.client and sasl, without the mechanism; an empty one is the sidecar's
  extraEnv  environment variables
*/}}
{{- define "app.hook" -}}
{{- $sidecar := include "app.sidecar" .root | fromJson -}}
{{- $values := $sidecar.values -}}
{{- $kafka := $values.kafka -}}
{{- if and $kafka.sasl.mechanism .kafka.sasl.existingSecret -}}
{{- $_ := set $kafka "sasl" (merge (dict "mechanism" $kafka.sasl.mechanism) .kafka.sasl) -}}
{{- end -}}
{{- if .kafka.tls.client.existingSecret -}}
{{- $_ := set $kafka.tls "client" .kafka.tls.client -}}
{{- end -}}
{{- $_ := set $values "extraEnv" (.extraEnv | default list) -}}
{{- $_ := set $values "apiToken" (dict) -}}
{{- $_ := set $values.http "tls" (dict) -}}
{{- $_ := set $values "notify" (dict) -}}
{{- $_ := set $values "state" (dict "sizeLimit" "64Mi") -}}
{{- $_ := set $sidecar "configMap" (printf "%s-%s" $sidecar.name .name) -}}
{{ toJson $sidecar }}
{{- end -}}

{{- define "app.hookLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 56 | trimSuffix "-" }}-{{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The spec of a hook's pod. Besides the dict of "app.hook": sidecar (what it makes), args, serviceAccountName. */}}
{{- define "app.hookPod" -}}
{{- $values := .root.Values -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml $values.podSecurityContext | nindent 2 }}
containers:
  - name: {{ .name }}
    image: {{ include "retry-sidecar.image" .sidecar | quote }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    args:
      {{- toYaml .args | nindent 6 }}
    env:
      {{- include "retry-sidecar.env" .sidecar | nindent 6 }}
    {{- with $values.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- toYaml $values.securityContext | nindent 6 }}
    volumeMounts:
      {{- include "retry-sidecar.volumeMounts" .sidecar | nindent 6 }}
volumes:
  {{- include "retry-sidecar.volumes" .sidecar | nindent 2 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
