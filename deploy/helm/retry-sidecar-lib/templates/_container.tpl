{{/*
The container, as a list item. Besides the dict of _config.tpl:
  native        true: a native sidecar, for initContainers (the default of `retry-sidecar.initContainer`)
  args          the arguments, in place of `run` with the settings
  moreEnv, moreMounts, moreVolumes  lists of them, besides those of the values
  tmpSize       size limit of /tmp
  advertisedHost  with http.tls: the name at which other instances reach this one, for which its certificate is valid
  nameIsStable  true: the pod keeps its name across restarts, and the name is the INSTANCE_ID. Otherwise the sidecar keeps
                an id in the state folder.
*/}}
{{- define "retry-sidecar.container" -}}
{{- $values := .values -}}
- name: retry-sidecar
  image: {{ include "retry-sidecar.image" . | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  {{- if .native }}
  restartPolicy: Always
  {{- end }}
  args:
    {{- with .args }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    - run
    {{- end }}
    {{- with $values.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    {{- include "retry-sidecar.env" . | nindent 4 }}
  {{- with $values.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - name: {{ include "retry-sidecar.portName" . }}
      containerPort: {{ $values.http.port }}
      protocol: TCP
  {{- range $kind, $path := dict "startupProbe" "/livez" "readinessProbe" "/readyz" "livenessProbe" "/livez" }}
  {{- with index $values $kind }}
  {{- if .enabled }}
  {{ $kind }}:
    httpGet:
      path: {{ $path }}
      port: {{ include "retry-sidecar.portName" $ }}
      {{- if $values.http.tls.existingSecret }}
      scheme: HTTPS
      {{- end }}
    {{- toYaml (omit . "enabled") | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- with $values.lifecycle }}
  lifecycle:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $values.securityContext | nindent 4 }}
  volumeMounts:
    {{- include "retry-sidecar.volumeMounts" . | nindent 4 }}
{{- end -}}

{{/* The same as a native sidecar: the last item of initContainers, so that it runs before the application. */}}
{{- define "retry-sidecar.initContainer" -}}
{{- if semverCompare "<1.29.0-0" .root.Capabilities.KubeVersion.Version -}}
{{- fail (printf "\n\nretry-sidecar as a native sidecar needs Kubernetes 1.29 or newer, this is %s: use the chart retry-sidecar, which runs separate pods\n" .root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "retry-sidecar.container" (merge (dict "native" true) .) -}}
{{- end -}}

{{- define "retry-sidecar.image" -}}
{{- $image := .values.image -}}
{{- with (default dict .root.Values.global).imageRegistry | default $image.registry -}}
{{ trimSuffix "/" . }}/
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (include "retry-sidecar.version" .) }}
{{- end -}}
{{- end -}}

{{/* The version of the program that these templates are for. A library cannot see its own Chart.yaml. */}}
{{- define "retry-sidecar.version" -}}0.1.0{{- end -}}

{{/* Port names are unique in a pod: the sidecar must not use the application's "http". */}}
{{- define "retry-sidecar.portName" -}}
{{ ternary "retry-http" "http" (default false .native) }}
{{- end -}}

{{/* The environment has what the image and the pod decide. It overrides the file, whose name every command finds here. */}}
{{- define "retry-sidecar.env" -}}
{{- $values := .values -}}
{{- if .nameIsStable -}}
- name: KAFKA_RETRY_INSTANCE_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{ end -}}
- name: KAFKA_RETRY_CONFIG
  value: /etc/retry-sidecar/config/config.yaml
- name: KAFKA_RETRY_STATE_DIR
  value: /var/lib/retry-sidecar
- name: KAFKA_RETRY_HTTP_HOST
  value: {{ $values.http.host | quote }}
- name: KAFKA_RETRY_HTTP_PORT
  value: {{ $values.http.port | quote }}
{{- with $values.http.tls }}
{{- if .existingSecret }}
- name: KAFKA_RETRY_HTTP_TLS_CERT
  value: /etc/retry-sidecar/http/{{ .certificateKey }}
- name: KAFKA_RETRY_HTTP_TLS_KEY
  value: /etc/retry-sidecar/http/{{ .privateKeyKey }}
{{- if .caKey }}
- name: KAFKA_RETRY_HTTP_TLS_CA
  value: /etc/retry-sidecar/http/{{ .caKey }}
{{- end }}
{{- with $.advertisedHost }}
- name: KAFKA_RETRY_HTTP_ADVERTISED_URL
  value: {{ printf "https://%s:%v" . $values.http.port | quote }}
{{- end }}
{{- end }}
{{- end }}
- name: KAFKA_RETRY_SHUTDOWN_TIMEOUT
  value: {{ printf "%ds" (int $values.shutdownTimeoutSeconds) | quote }}
{{- with $values.kafka.sasl }}
{{- if .mechanism }}
- name: KAFKA_RETRY_CLIENT_SASL_USERNAME
  {{- if .usernameKey }}
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .usernameKey }}
  {{- else }}
  value: {{ .username | quote }}
  {{- end }}
- name: KAFKA_RETRY_CLIENT_SASL_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .passwordKey }}
{{- end }}
{{- end }}
{{- with $values.apiToken }}
{{- if .existingSecret }}
- name: KAFKA_RETRY_API_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .key }}
{{- if .readKey }}
- name: KAFKA_RETRY_API_READ_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .readKey }}
{{- end }}
{{- end }}
{{- end }}
{{- with $values.notify }}
{{- if .existingSecret }}
- name: KAFKA_RETRY_NOTIFY_URL
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- with .moreEnv }}
{{ toYaml . }}
{{- end }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "retry-sidecar.volumeMounts" -}}
{{- $values := .values -}}
- name: retry-sidecar-state
  mountPath: /var/lib/retry-sidecar
- name: retry-sidecar-config
  mountPath: /etc/retry-sidecar/config
  readOnly: true
- name: retry-sidecar-tmp
  mountPath: /tmp
{{- if $values.http.tls.existingSecret }}
- name: retry-sidecar-http
  mountPath: /etc/retry-sidecar/http
  readOnly: true
{{- end }}
{{- if $values.kafka.tls.enabled }}
{{- if $values.kafka.tls.ca.existingSecret }}
- name: retry-sidecar-ca
  mountPath: /etc/retry-sidecar/ca
  readOnly: true
{{- end }}
{{- if $values.kafka.tls.client.existingSecret }}
- name: retry-sidecar-client
  mountPath: /etc/retry-sidecar/client
  readOnly: true
{{- end }}
{{- end }}
{{- with .moreMounts }}
{{ toYaml . }}
{{- end }}
{{- with $values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Volumes of the pod. Without values.state there is no volume for the state: a StatefulSet claims its own. */}}
{{- define "retry-sidecar.volumes" -}}
{{- $values := .values -}}
- name: retry-sidecar-config
  configMap:
    name: {{ include "retry-sidecar.configMapName" . }}
- name: retry-sidecar-tmp
  emptyDir:
    sizeLimit: {{ default "64Mi" .tmpSize }}
{{- with $values.state }}
- name: retry-sidecar-state
  emptyDir:
    sizeLimit: {{ .sizeLimit }}
{{- end }}
{{- with $values.http.tls }}
{{- if .existingSecret }}
- name: retry-sidecar-http
  secret:
    secretName: {{ .existingSecret }}
{{- end }}
{{- end }}
{{- with $values.kafka.tls }}
{{- if and .enabled .ca.existingSecret }}
- name: retry-sidecar-ca
  secret:
    secretName: {{ .ca.existingSecret }}
    items:
      - key: {{ .ca.key }}
        path: {{ .ca.key }}
{{- end }}
{{- if and .enabled .client.existingSecret }}
- name: retry-sidecar-client
  secret:
    secretName: {{ .client.existingSecret }}
    items:
      - key: {{ .client.certificateKey }}
        path: {{ .client.certificateKey }}
      - key: {{ .client.privateKeyKey }}
        path: {{ .client.privateKeyKey }}
{{- end }}
{{- end }}
{{- with .moreVolumes }}
{{ toYaml . }}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The pod's terminationGracePeriodSeconds. Kubernetes stops the application first and then the sidecar, in one grace period.
`applicationSeconds` is the application's share. 15 s are for the steps after SHUTDOWN_TIMEOUT: leaving the group, closing the
store and HTTP.
*/}}
{{- define "retry-sidecar.terminationGracePeriodSeconds" -}}
{{ add (default 30 .applicationSeconds) .values.shutdownTimeoutSeconds 15 }}
{{- end -}}
