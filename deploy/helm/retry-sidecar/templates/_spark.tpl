{{/* Stops the rendering when the values of the Spark engine cannot be meant. */}}
{{- define "app.sparkCheck" -}}
{{- if not .Values.spark.checkpoint -}}
{{- fail "\n\nspark.checkpoint: set it with engine=spark, to a folder that all pods reach: s3a://bucket/folder, hdfs://…\n" -}}
{{- end -}}
{{- if hasPrefix "file:" .Values.spark.checkpoint -}}
{{- fail "\n\nspark.checkpoint: a folder of one pod (file:) is not reached by the others: use s3a://bucket/folder, hdfs://…\n" -}}
{{- end -}}
{{- end -}}

{{/* The arguments of the driver, as JSON. It runs in client mode: it creates its executors, and ends with its pod. */}}
{{- define "app.sparkArgs" -}}
{{- $spark := .Values.spark -}}
{{- $executor := $spark.executor -}}
{{- $conf := dict
  "spark.kubernetes.namespace" (include "app.namespace" .)
  "spark.kubernetes.container.image" (include "retry-sidecar.image" (dict "root" $ "values" .Values))
  "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
  "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
  "spark.kubernetes.executor.podNamePrefix" (include "app.fullname" .)
  "spark.kubernetes.executor.podTemplateFile" "/etc/retry-sidecar/executor/pod.yaml"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.driver.host" "$(POD_IP)"
  "spark.driver.port" "7078"
  "spark.driver.blockManager.port" "7079"
  "spark.retrySidecar.reads.port" "7080"
  "spark.driver.memory" $spark.driverMemory
  "spark.executor.instances" (toString $executor.instances)
  "spark.executor.cores" (toString $executor.cores)
  "spark.executor.memory" $executor.memory
  "spark.executor.memoryOverhead" $executor.memoryOverhead
-}}
{{- $args := list "spark" "run" "--master=k8s://https://kubernetes.default.svc" (printf "--checkpoint=%s" $spark.checkpoint) (printf "--state-partitions=%d" (int $spark.statePartitions)) (printf "--trigger=%s" $spark.trigger) -}}
{{- range $name, $value := merge (dict) $spark.conf $conf -}}
{{- $args = append $args (printf "--conf=%s=%v" $name $value) -}}
{{- end -}}
{{ toJson $args }}
{{- end -}}

{{/* What the driver's container has besides that of the embedded engine, as JSON. */}}
{{- define "app.sparkContainer" -}}
{{- $env := list -}}
{{- range $name, $path := dict "POD_NAME" "metadata.name" "POD_IP" "status.podIP" -}}
{{- $env = append $env (dict "name" $name "valueFrom" (dict "fieldRef" (dict "fieldPath" $path))) -}}
{{- end -}}
{{- $mount := dict "name" "retry-sidecar-executor" "mountPath" "/etc/retry-sidecar/executor" "readOnly" true -}}
{{- $volume := dict "name" "retry-sidecar-executor" "configMap" (dict "name" (printf "%s-executor" (include "app.fullname" .))) -}}
{{- dict "args" (include "app.sparkArgs" . | fromJsonArray) "moreEnv" $env "moreMounts" (list $mount) "moreVolumes" (list $volume) "tmpSize" .Values.spark.tmpSize | toJson -}}
{{- end -}}
